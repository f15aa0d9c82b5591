"""A step of a program: the making of one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shorthaul.relational.ir.spaces import Space

Shape = tuple[int, ...]


@dataclass(frozen=True)
class SourceLine:
    """Where the author wrote a step."""

    file: str
    number: int
    text: str
    function: str

    def __str__(self) -> str:
        return f"in {self.function} ({self.file}:{self.number}):  {self.text}"


@dataclass(frozen=True)
class Step:
    """The making of one value."""

    name: str
    operation: str
    operands: tuple[str, ...]
    shape: Shape  # of one row
    space: Space
    attributes: tuple[tuple[str, Any], ...] = ()  # sorted by name, so that equal steps are equal
    line: SourceLine | None = field(default=None, compare=False)

    def __getitem__(self, attribute: str) -> Any:
        for name, value in self.attributes:
            if name == attribute:
                return value
        raise KeyError(f"{self.operation} {self.name} has no attribute {attribute}")

    def get(self, attribute: str, default: Any = None) -> Any:
        """An attribute, or `default`."""
        return dict(self.attributes).get(attribute, default)

    @property
    def size(self) -> int:
        """Elements of one row."""
        size = 1
        for each in self.shape:
            size *= each
        return size

    def text(self) -> str:
        """One line, as the compiler's stages print it."""
        made_from = " ".join((self.operation, ", ".join(self.operands))).rstrip()
        if self.attributes:
            inside = ", ".join(f"{name}={_show(value)}" for name, value in self.attributes)
            made_from += f" {{{inside}}}"
        shape = " ".join(map(str, self.shape)) or "scalar"
        return f"{self.name} = {made_from} : {shape} over {self.space.value}"


def _show(value: Any) -> str:
    if isinstance(value, Space):
        return value.value.replace(" ", "_")
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
