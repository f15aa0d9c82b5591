"""Every setting, with its environment variable, default and meaning.

A setting is read where it is used, so a variable set before the first use is obeyed; a value set in
Python wins over the environment.

>>> from shorthaul.settings import settings
>>> with settings.override(engine="thread"):
...     settings.engine
'thread'
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from shorthaul.errors import SettingError
from shorthaul.units import parse_bytes

Value = TypeVar("Value")


class Setting(Generic[Value]):
    """One setting: a descriptor that reads Python's override, then the environment, then the default."""

    def __init__(
        self,
        environment: str,
        default: Callable[[], Value],
        parse: Callable[[str], Value],
        expected: str,
        meaning: str,
    ) -> None:
        self.environment, self.default, self.parse = environment, default, parse
        self.expected, self.meaning = expected, meaning
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Settings, owner: type) -> Value:
        if self.name in instance._overrides:
            value: Value = instance._overrides[self.name]
            return value
        text = os.environ.get(self.environment)
        return self.default() if text is None else self.read(text)

    def read(self, text: str) -> Value:
        """The value that `text` stands for; `SettingError` when it stands for none."""
        try:
            return self.parse(text)
        except ValueError as error:
            raise SettingError(self.environment, text, f"expected {self.expected}") from error


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return parse


def _directory(text: str) -> Path:
    if not text:
        raise ValueError(text)
    return Path(text).expanduser()


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "shorthaul"


def _positive_seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise ValueError(text)
    return seconds


class Settings:
    """The settings of this process; `settings` below is the only instance anyone needs."""

    cache_directory = Setting(
        "SHORTHAUL_CACHE",
        _user_cache,
        _directory,
        "a directory",
        "where compiled kernels, tuning results and built data sets are kept",
    )
    cache_limit_bytes = Setting(
        "SHORTHAUL_CACHE_LIMIT",
        lambda: 2 * 2**30,
        parse_bytes,
        "bytes such as '2GiB'",
        "size above which the least recently used kernels are removed",
    )
    scratch_directory = Setting(
        "SHORTHAUL_SCRATCH",
        lambda: Path(tempfile.gettempdir()),
        _directory,
        "a directory",
        "where data that lives no longer than the process is written",
    )
    engine = Setting(
        "SHORTHAUL_ENGINE",
        lambda: "auto",
        _one_of("auto", "uring", "thread", "memory"),
        "one of auto, uring, thread, memory",
        "how storage is read and written; auto takes io_uring where it works",
    )
    kernels = Setting(
        "SHORTHAUL_KERNELS",
        lambda: "auto",
        _one_of("auto", "generated", "torch"),
        "one of auto, generated, torch",
        "generated kernels, plain PyTorch fallbacks, or whichever works here",
    )
    autotune = Setting(
        "SHORTHAUL_AUTOTUNE",
        lambda: "on",
        _one_of("on", "off", "force"),
        "one of on, off, force",
        "measure and remember schedules, never measure, or measure again",
    )
    compile_limit_seconds = Setting(
        "SHORTHAUL_COMPILE_SECONDS",
        lambda: 300.0,
        _positive_seconds,
        "a positive number of seconds",
        "time after which a compiler that hangs is stopped",
    )
    progress = Setting(
        "SHORTHAUL_PROGRESS",
        lambda: "auto",
        _one_of("auto", "on", "off"),
        "one of auto, on, off",
        "progress bars; auto shows them on a terminal",
    )

    def __init__(self) -> None:
        self._overrides: dict[str, Any] = {}

    @classmethod
    def all(cls) -> tuple[Setting[Any], ...]:
        """Every setting, in the order of this file."""
        return tuple(each for each in vars(cls).values() if isinstance(each, Setting))

    def set(self, **values: object) -> None:
        """Set values for this process; `None` gives a setting back to its environment variable.

        Text is read as the environment variable would be: `settings.set(cache_limit_bytes="4GiB")`.
        """
        known = {each.name: each for each in self.all()}
        for name, value in values.items():
            if name not in known:
                raise SettingError(name, str(value), f"expected one of {', '.join(known)}")
            if value is None:
                self._overrides.pop(name, None)
            else:
                self._overrides[name] = known[name].read(value) if isinstance(value, str) else value

    @contextmanager
    def override(self, **values: object) -> Iterator[None]:
        """Set values for the duration of a `with` block."""
        before = dict(self._overrides)
        self.set(**values)
        try:
            yield
        finally:
            self._overrides = before


settings = Settings()
