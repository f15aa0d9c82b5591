"""Generated C++ as a value: its text, what it includes, and the functions it exports.

>>> import torch
>>> scale = Function(
...     "scale",
...     (
...         TensorArgument("x", torch.float32, ("n",)),
...         NumberArgument("factor", "float64"),
...         TensorArgument("out", torch.float32, ("n",), is_written=True),
...         DimensionArgument("n"),
...     ),
... )
>>> print(scale.prototype())
void scale(const float* x, double factor, float* out, int64_t n)

The prototypes are written into the compiled text and name the functions for C: a definition that
disagrees with what Python will pass is another function to C++, and the one that Python wants is
missing, which is an error before anything is called.
"""

from __future__ import annotations

import functools
import hashlib
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TypeVar

import torch

Key = TypeVar("Key")

_C_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "uint16_t",  # bits: a kernel converts where it loads and stores
    torch.bfloat16: "uint16_t",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.uint8: "uint8_t",
    torch.bool: "uint8_t",
}
_NUMBER_TYPES = {
    "int64": "int64_t",
    "float64": "double",
    "address": "void*",
}
_RETURN_TYPES = {
    "nothing": "void",
    "status": "int32_t",
    "int64": "int64_t",
    "address": "void*",
}
# A header lies beside the code that uses it; its name is its path from above the package.
_INCLUDE = re.compile(r'#include\s+"(shorthaul/[\w/]+\.h)"')


@dataclass(frozen=True)
class TensorArgument:
    """A tensor, passed as a pointer to its first element.

    `shape` names or fixes each dimension: an `int` must be met, a name is bound by the first tensor
    that has it and must agree in the others, `None` takes any size; no shape takes any shape.
    """

    name: str  # as in C++
    dtype: torch.dtype  # that it must have
    shape: tuple[int | str | None, ...] | None = None  # see above
    is_written: bool = field(default=False, kw_only=True)  # by the kernel
    is_contiguous: bool = field(default=True, kw_only=True)  # must be
    is_optional: bool = field(default=False, kw_only=True)  # None becomes a null pointer

    def declaration(self) -> str:
        """The parameter as C++ writes it."""
        return f"{'' if self.is_written else 'const '}{_c_type(_C_TYPES, self.dtype)}* {self.name}"


@dataclass(frozen=True)
class NumberArgument:
    """A number, passed by value; `address` takes an integer and passes a `void*`."""

    name: str  # as in C++
    type: str  # int64, float64 or address

    def declaration(self) -> str:
        """The parameter as C++ writes it."""
        return f"{_c_type(_NUMBER_TYPES, self.type)} {self.name}"


@dataclass(frozen=True)
class DimensionArgument:
    """A dimension named in a tensor's shape; the caller does not pass it, its tensors carry it."""

    name: str

    def declaration(self) -> str:
        """The parameter as C++ writes it."""
        return f"int64_t {self.name}"


@dataclass(frozen=True)
class ThreadsArgument:
    """PyTorch's thread count at the time of the call; the caller does not pass it."""

    name: str = "threads"

    def declaration(self) -> str:
        """The parameter as C++ writes it."""
        return f"int64_t {self.name}"


Argument = TensorArgument | NumberArgument | DimensionArgument | ThreadsArgument


@dataclass(frozen=True)
class Function:
    """One exported function. A `status` other than 0 becomes a `KernelStatusError`."""

    name: str  # as in C++
    arguments: tuple[Argument, ...]  # in order
    returns: str = "nothing"  # nothing, status, int64 or address

    def __post_init__(self) -> None:
        tensors = [each for each in self.arguments if isinstance(each, TensorArgument)]
        bound = {size for each in tensors if not each.is_optional for size in each.shape or ()}
        named = {size for each in tensors for size in each.shape or () if isinstance(size, str)}
        needed = {each.name for each in self.arguments if isinstance(each, DimensionArgument)}
        for name in sorted((needed | named) - bound):
            raise ValueError(f"{self.name}: no required tensor has a dimension named `{name}`")
        others = [each.name for each in self.arguments if not isinstance(each, DimensionArgument)]
        _require_names(self.name, (self.name, *others, *sorted(named)))
        _require_distinct(self.name, (*others, *sorted(named)))
        self.prototype()  # refuses types that cannot be passed

    def prototype(self) -> str:
        """The declaration as C++ writes it, without linkage."""
        parameters = ", ".join(each.declaration() for each in self.arguments)
        return f"{_c_type(_RETURN_TYPES, self.returns)} {self.name}({parameters})"


@dataclass(frozen=True)
class CppSource:
    """What a writer of kernels hands over: it never compiles, and the compiler never edits it."""

    name: str  # <what>_<detail>; the digest is appended, so that a profile can be searched
    text: str  # C++
    functions: tuple[Function, ...]  # those to export
    flags: tuple[str, ...] = ()  # for the compiler, beside its own

    def __post_init__(self) -> None:
        _require_names("a source", (self.name,))
        _require_distinct(self.name, tuple(each.name for each in self.functions))

    def complete_text(self) -> str:
        """The text that is compiled: prototypes first, then what the writer wrote."""
        prototypes = "\n".join(
            f'extern "C" __attribute__((visibility("default"))) {each.prototype()};'
            for each in self.functions
        )
        return f"#include <cstdint>\n\n{prototypes}\n\n{self.text.rstrip()}\n"

    def headers(self) -> Mapping[str, str]:
        """Every shorthaul header that the text includes, directly or not, with its content."""
        found: dict[str, str] = {}
        waiting = _INCLUDE.findall(self.text)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = _read_header(name)
                waiting.extend(_INCLUDE.findall(found[name]))
        return dict(sorted(found.items()))

    def digest(self, toolchain_fingerprint: str) -> str:
        """A content address: equal digests mean interchangeable shared objects."""
        content = hashlib.sha256()
        for part in (
            self.name,
            self.complete_text(),
            *(text for pair in self.headers().items() for text in pair),
            *self.flags,
            toolchain_fingerprint,
        ):
            encoded = part.encode()
            content.update(len(encoded).to_bytes(8, "little"))
            content.update(encoded)
        return content.hexdigest()


def _c_type(types: Mapping[Key, str], key: Key) -> str:
    if key not in types:
        known = ", ".join(map(str, types))
        raise ValueError(f"a kernel function cannot take or return {key!r}; it can: {known}")
    return types[key]


def _require_names(owner: str, names: Sequence[str]) -> None:
    """Names stand in C++ and in the Python that calls it; that Python's own names begin with _."""
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise ValueError(f"{owner}: `{name}` cannot be a name in both C++ and Python")


def _require_distinct(owner: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{owner}: `{name}` names two different things")


@functools.cache  # a package's files do not change while it runs
def _read_header(name: str) -> str:
    return (resources.files("shorthaul") / name.removeprefix("shorthaul/")).read_text("utf-8")
