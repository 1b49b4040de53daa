"""The exception for invalid input, whose message says how to correct it."""


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
