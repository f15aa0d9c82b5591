"""Callers of a kernel's functions, compiled once for all processes.

Compiling the Python that checks a call takes half a millisecond for each function, which is most of what
loading a kernel takes. The code lies beside the shared object, and goes when that goes::

    <cache>/kernels/3f2a91bc.../callers-cpython-311-5b1c09d2e4a76f83.bin    SHA-256, then the code

The file is named after the interpreter and the text. One that is damaged, or cannot be written, costs
the compiling.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

from shorthaul.whole_file import whole_file

_DIGEST_BYTES = hashlib.sha256().digest_size


def load_callers(directory: Path, texts: Sequence[str]) -> list[CodeType]:
    """The code of each text, from `directory` or compiled now and left there."""
    distinct = list(dict.fromkeys(texts))
    path = directory / _file_name(distinct)
    codes = _read(path)
    if codes is None:
        codes = [compile(text, "<caller of a kernel>", "exec") for text in distinct]
        with contextlib.suppress(OSError):  # a cache that can only be read is a good cache
            _write(path, codes)
    found = dict(zip(distinct, codes, strict=True))
    return [found[text] for text in texts]


def _file_name(texts: Sequence[str]) -> str:
    content = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    return f"callers-{sys.implementation.cache_tag}-{content[:16]}.bin"


def _read(path: Path) -> list[CodeType] | None:
    """What was left there, whole; `None` if nothing was."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, packed = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(packed).digest() != digest:
        return None
    codes: list[CodeType] = marshal.loads(packed)  # as trusted as the object beside it
    return codes


def _write(path: Path, codes: list[CodeType]) -> None:
    packed = marshal.dumps(codes)
    with whole_file(path) as file:
        file.write(hashlib.sha256(packed).digest() + packed)
