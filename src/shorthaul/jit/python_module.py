"""Generated Python as a module: written to the cache, found by content, imported from there.

Triton reads a kernel's source from its file, so text that becomes a Triton kernel must lie in one.
Like the compiled kernels, these files are code that will be run: they lie in a directory that is this
user's alone, and what is found there is used only if it is the very text that was asked for.

    <cache>/modules/rgcn_3f2a91bc04d1e5f7.py
"""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from pathlib import Path
from types import ModuleType

from shorthaul.jit.kernel_cache import make_private_directory
from shorthaul.jit.private_cache import private_directory, why_unwritable
from shorthaul.settings import settings
from shorthaul.whole_file import whole_file

_lock = threading.Lock()
_loaded: dict[Path, ModuleType] = {}


def load_module(name: str, text: str) -> ModuleType:
    """The module that `text` is; imported once per process.

    >>> load_module("answer", "ANSWER = 42\\n").ANSWER
    42
    """
    directory = settings.cache_directory / "modules"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = directory / f"{name}_{digest}.py"
    with _lock:
        found = _loaded.get(path)
        if found is None:
            found = _loaded[path] = _import(_write_in(directory, path.name, text))
        return found


def _write_in(directory: Path, name: str, text: str) -> Path:
    """Put `text` into the cache, or where that cannot be written, into a private directory."""
    try:
        make_private_directory(directory)
        _write(directory / name, text)
    except OSError as error:
        reason = why_unwritable(error)
        if reason is None:
            raise
        directory = private_directory("the cache of generated modules", directory, reason)
        directory /= "modules"
        make_private_directory(directory)
        _write(directory / name, text)
    return directory / name


def _write(path: Path, text: str) -> None:
    """Put `text` there whole, unless it is there."""
    try:
        if path.read_text() == text:
            return
    except (OSError, UnicodeDecodeError):
        pass
    with whole_file(path) as file:
        file.write(text.encode())


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"shorthaul_generated_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
