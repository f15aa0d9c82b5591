"""Errors about settings, packages, data sets and what was asked to be explained."""

from __future__ import annotations

from collections.abc import Sequence

from shorthaul.errors.root import ShorthaulError


class SettingError(ShorthaulError, ValueError):
    """A setting or its environment variable has a value that cannot be used."""

    def __init__(self, environment: str, text: str, expected: str) -> None:
        super().__init__(f"{environment} is {text!r}, but {expected}.")


class UnknownSettingError(ShorthaulError, AttributeError):
    """A setting was named that does not exist."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"there is no setting `{name}`; there are {', '.join(known)}.")


class MissingExtraError(ShorthaulError, ImportError):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package `{package}`, which is not installed.\n"
            f"  pip install 'shorthaul[{extra}]'"
        )


class MissingPackageError(ShorthaulError, ImportError):
    """A package that shorthaul does not install itself is needed for what was asked."""

    def __init__(self, package: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package `{package}`, which is not installed or does not load.\n"
            "  Its own pages say which of its builds fits your PyTorch."
        )


class ExplainError(ShorthaulError, TypeError):
    """`sh.explain` was given something that shorthaul did not make."""

    def __init__(self, subject: object) -> None:
        super().__init__(
            f"cannot explain {subject!r}: expected something that shorthaul made, such as a kernel."
        )


class DatasetError(ShorthaulError, ValueError):
    """An embedded data set was asked for in a way, or on a Python, that it cannot serve."""
