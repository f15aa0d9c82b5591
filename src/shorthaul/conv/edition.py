"""Which edition of the kernels this is: a choice measured with other kernels is not remembered.

>>> digest_texts({"a.h": "one"}) == digest_texts({"a.h": "two"})
False
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from importlib import resources


def digest_texts(texts: Mapping[str, str]) -> str:
    """Eight digits that change with any name or text."""
    digest = hashlib.sha256()
    for name in sorted(texts):
        digest.update(f"{name}\n{len(texts[name])}\n{texts[name]}".encode())
    return digest.hexdigest()[:8]


@functools.cache
def kernel_edition() -> str:
    """The digest of all that decides what a convolution runs: this package and its headers."""
    folders = (
        resources.files("shorthaul.conv"),
        resources.files("shorthaul.conv") / "methods",
    )
    return digest_texts(
        {
            each.name: each.read_text(encoding="utf-8")
            for folder in folders
            for each in folder.iterdir()
            if each.name.endswith((".py", ".h"))
        }
    )
