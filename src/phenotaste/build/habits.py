"""Smoking as no, quit or yes and alcohol as no or yes, from the spellings that records use."""

UNKNOWN = ("unknown", "not asked", "never assessed", "declined", "refused", "not recorded", "not on file")
NO_WORDS = ("", "no", "none", "n", "0", "0.0", "false", "never")
YES_WORDS = (
    "yes",
    "y",
    "1",
    "1.0",
    "true",
    "current",
    "daily",
    "some days",
    "every day",
    "occasional",
    "social",
)


def smoking(text: str) -> str | None:
    """
    >>> [smoking(text) for text in ("Never smoker", "Ex-smoker", "Current every day smoker", "unknown")]
    ['no', 'quit', 'yes', None]
    """
    text = text.lower()
    if not text or any(word in text for word in UNKNOWN):
        return None
    if text in ("ex", "past") or any(
        word in text
        for word in ("former", "quit", "ex-", "ex ", "stopped", "previous", "gave up", "past smok")
    ):
        return "quit"
    if text in NO_WORDS or any(
        word in text
        for word in ("never", "non-smok", "nonsmok", "non smok", "does not", "not a ", "no tobacco")
    ):
        return "no"
    if text in YES_WORDS or any(
        word in text for word in ("smok", "tobacco", "cigar", "current", "every day", "some day", "nicotine")
    ):
        return "yes"
    return None


def alcohol(text: str) -> str | None:
    """
    >>> [alcohol(text) for text in ("Non-drinker", "Social drinker", "former drinker", "not asked")]
    ['no', 'yes', 'no', None]
    """
    text = text.lower()
    if not text or any(word in text for word in UNKNOWN):
        return None
    no = (
        "never",
        "non-drink",
        "nondrink",
        "non drink",
        "does not",
        "abst",
        "teetotal",
        "former",
        "ex-",
        "quit",
    )
    if text in NO_WORDS or any(word in text for word in (*no, "stopped", "no alcohol", "denies")):
        return "no"
    if text in YES_WORDS or any(
        word in text for word in ("drink", "alcohol", "current", "social", "occasion")
    ):
        return "yes"
    return None
