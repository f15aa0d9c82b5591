"""Which edition of the kernels this is: a choice measured with other kernels is not remembered.

>>> digest_texts({"a.h": "one"}) == digest_texts({"a.h": "two"})
False
>>> digest_texts({"a.h": "int x;  // one"}) == digest_texts({"a.h": "int x;  // two"})
True
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from importlib import resources

# What decides a kernel's text, its blocks and its numbers; who runs it does not change how fast it is.
FOLDERS = (
    "conv/problem",
    "conv/layout",
    "conv/methods",
    "conv/methods/gradients",
    "jit/include",
)


def digest_texts(texts: Mapping[str, str]) -> str:
    """Eight digits that change with any name or text, but not with words for readers."""
    digest = hashlib.sha256()
    for name in sorted(texts):
        text = strip_header(texts[name]) if name.endswith(".h") else strip_module(texts[name])
        digest.update(f"{name}\n{len(text)}\n{text}".encode())
    return digest.hexdigest()[:8]


def strip_header(text: str) -> str:
    """A header without its comments.

    >>> strip_header("// Sums.\\nint x;  // of a row\\n")
    'int x;\\n'
    """
    lines = (re.sub(r"\s*//.*", "", line) for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def strip_module(text: str) -> str:
    """A module without docstrings and comments; other texts between triple quotes are kernels.

    >>> strip_module('"Words."\\n# More.\\nx = 1\\n')
    '"Words."\\nx = 1\\n'
    """
    parts = re.split(r'("""[\s\S]*?""")', text)
    kept = ""
    for part in parts:
        if not part.startswith('"""'):
            lines = part.splitlines(keepends=True)
            kept += "".join(line for line in lines if not line.lstrip().startswith("#"))
        elif kept.rpartition("\n")[2].strip():
            kept += part
    return kept


@functools.cache
def kernel_edition() -> str:
    """The digest of all that decides what a convolution runs."""
    root = resources.files("shorthaul")
    return digest_texts(
        {
            f"{folder}/{each.name}": each.read_text(encoding="utf-8")
            for folder in FOLDERS
            for each in root.joinpath(folder).iterdir()
            if each.name.endswith((".py", ".h"))
        }
    )
