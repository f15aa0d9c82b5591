"""What holds files, threads or memory is closed at the end of a `with` block.

>>> class Door(Closing):
...     def close(self) -> None:
...         print("closed")
>>> with Door():
...     print("inside")
inside
closed
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

Held = TypeVar("Held", bound="Closing")


class Closing(ABC):
    """Can be used in a `with` block, which closes it."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held; closing again does nothing."""

    def __enter__(self: Held) -> Held:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
