"""Writes a count with its noun, for messages. It imports nothing, as the command's help needs it too."""


def counted(count: int, thing: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "client"), counted(1200, "client")
    ('1 client', '1,200 clients')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
