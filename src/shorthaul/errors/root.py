"""The root of all errors: it travels between processes as it is."""

from __future__ import annotations

from typing import Any

_PACKAGE = "shorthaul.errors"


class ShorthaulError(Exception):
    """Root of every error below; raised itself by nothing."""

    def __init_subclass__(cls) -> None:
        # A traceback names an error as a user would import it, not by the module that it lies in.
        if cls.__module__.startswith(f"{_PACKAGE}."):
            cls.__module__ = _PACKAGE

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would unpickle by calling the class with the finished sentence; ours take facts.
        # Errors travel between processes when a worker of a data loader fails.
        return _restore_error, (type(self), super().__reduce__()[1], dict(vars(self)))


def _restore_error(
    kind: type[ShorthaulError], arguments: tuple[Any, ...], attributes: dict[str, Any]
) -> ShorthaulError:
    # MemoryError refuses to make its subclasses by `__new__`; the two roots below make any.
    error: ShorthaulError = (OSError if issubclass(kind, OSError) else Exception).__new__(kind)
    builtin: Any = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    builtin.__init__(error, *arguments)
    vars(error).update(attributes)
    return error
