"""Text of strangers on a terminal."""


def plain(text: str) -> str:
    """Return `text` with control characters escaped: a record must not draw on the screen."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
