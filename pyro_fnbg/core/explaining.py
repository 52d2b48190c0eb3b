"""What is known here of an error that was raised elsewhere."""

from __future__ import annotations

__all__ = ["explain"]


def explain(error: BaseException, words: str) -> None:
    """Add words to the text of an error, or to its notes if its text is not what it was given.

    Loggers and many consoles show the text alone.

    Args:
        error: The error, which is changed and not raised.
        words: What to add, on a line of its own.

    Example:
        >>> error = RuntimeError("shapes cannot be multiplied")
        >>> explain(error, "x has 3 columns")
        >>> print(error)
        shapes cannot be multiplied
        x has 3 columns
    """
    text, args = str(error), error.args
    if args == ((text,) if text else ()):
        error.args = (f"{text}\n{words}" if text else words,)
        if str(error).endswith(words):
            return
        error.args = args
    error.add_note(words)
