"""The one exception that means: the input is at fault, and here is what to do about it."""


class InputError(ValueError):
    """Bad input. The message is one sentence: what was wrong, where, and what to do.

    It never holds a patient identifier, a data value or a password: it may end up in a log.
    """
