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
from collections.abc import Iterator, Mapping
from importlib import metadata, resources
from importlib.abc import Traversable

import torch

from shorthaul.jit.toolchain import FLAGS

_COMMENT_LINES = re.compile(r"^[ \t]*#.*\n?", re.MULTILINE)

# What decides a kernel's text, its blocks and its numbers; who runs it does not change how fast it is.
FOLDERS = ("conv/problem", "conv/layout", "conv/methods", "jit/include")
LEFT_OUT = ("conv/problem/arguments.py",)  # what callers may write


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
    # Without patterns: this is part of what a model's first output waits for.
    lines = (
        line.partition("//")[0].rstrip() if "//" in line else line for line in text.splitlines()
    )
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
            kept += _COMMENT_LINES.sub("", part) if "#" in part else part
        elif kept.rpartition("\n")[2].strip():
            kept += part
    return kept


@functools.cache
def kernel_edition() -> str:
    """The digest of all that decides what a convolution runs."""
    root = resources.files("shorthaul")
    texts = {
        name: text
        for folder in FOLDERS
        for name, text in read_texts(root.joinpath(folder), folder)
        if name not in LEFT_OUT
    }
    return digest_texts(texts | {"flags of the compiler": "\n".join(FLAGS)})


@functools.cache
def device_edition() -> str:
    """The digest of all that decides what a convolution runs on a CUDA device."""
    root = resources.files("shorthaul")
    texts = {
        name: text
        for folder in ("conv/problem", "conv/triton")
        for name, text in read_texts(root.joinpath(folder), folder)
        if name not in LEFT_OUT
    }
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    peers = f"Triton {metadata.version('triton')}, cuDNN {cudnn}"
    return digest_texts(texts | {"who compiles, and who is compared": peers})


def read_texts(folder: Traversable, name: str) -> Iterator[tuple[str, str]]:
    """The modules and headers in a folder and below it, by path."""
    for each in folder.iterdir():
        path = f"{name}/{each.name}"
        if each.is_dir():
            yield from read_texts(each, path)
        elif each.name.endswith((".py", ".h")):
            yield path, each.read_text(encoding="utf-8")
