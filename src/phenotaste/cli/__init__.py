"""The command line: each command parses, calls the library, and prints."""

from phenotaste.cli.app import app, main

__all__ = ["app", "main"]
