"""Names of users in queries: text of theirs is never part of a query but as one of these."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A name as it stands in a query.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'
