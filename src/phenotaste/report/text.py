"""Names from the data as text that is safe to show."""

from typing import Any


def readable(name: Any) -> str:
    """The name with what cannot be printed replaced: control codes could steer a terminal."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in str(name))
