"""Bytes and seconds as people write and read them.

>>> parse_bytes("4GiB"), parse_bytes("1.5 MB"), parse_bytes(4096)
(4294967296, 1500000, 4096)
>>> format_bytes(44_237_291_520), format_seconds(0.000015)
('41.2 GiB', '15.0 us')
"""

from __future__ import annotations

import operator
import re
from decimal import Decimal
from typing import SupportsIndex

_BYTES_PER_UNIT = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(size: SupportsIndex | str) -> int:
    """A number of bytes from `4096`, `"4GiB"`, `"1.5 MB"`.

    Decimal units are powers of ten and binary units powers of two, as printed on drives and in
    memory sizes. Raises `ValueError` that shows the accepted forms.
    """
    if not isinstance(size, str | bool) and hasattr(size, "__index__"):  # NumPy's integers too
        count_bytes = operator.index(size)
        if count_bytes < 0:
            raise ValueError(f"a size in bytes cannot be negative, got {count_bytes}")
        return count_bytes
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is None or match[2].lower() not in _BYTES_PER_UNIT:
        raise ValueError(f"expected bytes such as 4096, '512 MB' or '4GiB', got {size!r}")
    return round(Decimal(match[1]) * _BYTES_PER_UNIT[match[2].lower()])  # exact beyond 2**53


def format_bytes(count_bytes: float) -> str:
    """Bytes in the largest binary unit that keeps the number at or above one."""
    size = float(count_bytes)
    if round(abs(size)) < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if round(abs(size), 1) < 1024:  # as printed: never "1024.0 KiB"
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """Seconds in the unit that keeps the number readable."""
    for scale, unit in ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms")):
        digits = 0 if unit == "ns" else 1
        if round(abs(seconds) / scale, digits) < 1000:  # as printed: never "1000.0 ms"
            return f"{seconds / scale:.{digits}f} {unit}"
    return f"{seconds:.1f} s"
