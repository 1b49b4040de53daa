"""`python -m phenotaste.cli` is the `phenotaste` command."""

from phenotaste.cli import main

if __name__ == "__main__":
    main()
