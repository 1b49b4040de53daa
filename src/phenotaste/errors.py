"""The exception for invalid input, whose message says how to correct it."""

import re

# What an address or its parameters hold of a user and a password.
CREDENTIALS = (
    (re.compile(r"(\w:/+).*@", re.DOTALL), r"\1…@"),  # postgresql://user:password@host, also with one slash
    (re.compile(r"[^\s:/@]+:[^\s/@][^\s@]*@"), "…@"),  # user:password@host
    (re.compile(r"\b((?:ssl)?pass\w*|pwd)\s*=\s*('[^']*'|[^\s&]+)", re.IGNORECASE), r"\1=…"),  # password=…
)


class InputError(ValueError):
    """Invalid input. The message is one sentence: what was wrong, where, and what to do.

    It never holds a patient identifier, a data value or a password: it may end up in a log.

    Examples
    --------
    >>> from phenotaste import Cohort, InputError
    >>> try:
    ...     Cohort.load("no-such-folder")
    ... except InputError as error:
    ...     print(error)
    no-such-folder is not a saved cohort; give the folder that save() or a command made.
    """

    def __init__(self, message: str) -> None:
        super().__init__(safe(message))


def safe(text: str) -> str:
    """A text for a terminal or a log: without passwords of addresses, and without control codes, in one line.

    Examples
    --------
    >>> from phenotaste.errors import safe
    >>> safe("postgresql:/ann:secret@host/cdm has no column pat\\x1b[2J")
    'postgresql:/…@host/cdm has no column pat\ufffd[2J'
    """
    for pattern, replacement in CREDENTIALS:
        text = pattern.sub(replacement, text)
    return "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "\ufffd" for letter in text
    )
