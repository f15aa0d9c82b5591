"""Every setting, with its environment variable, default and meaning.

A setting is read where it is used, so a variable set before the first use is obeyed; a value set in
Python wins over the environment.

>>> from shorthaul.settings import settings
>>> with settings.override(engine="thread"):
...     settings.engine
'thread'
"""

from __future__ import annotations

import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from shorthaul.errors import SettingError, UnknownSettingError
from shorthaul.host_memory import usable_bytes
from shorthaul.units import parse_bytes

Value = TypeVar("Value")


class Setting(Generic[Value]):
    """One setting: a descriptor that reads Python's value, then the environment, then the default.

    `shown_default` is what the documentation prints where the default differs between machines.
    """

    def __init__(
        self,
        environment: str,
        default: Callable[[], Value],
        parse: Callable[[str], Value],
        expected: str,
        meaning: str,
        shown_default: str = "",
    ) -> None:
        self.environment, self.default, self.parse = environment, default, parse
        self.expected, self.meaning, self.shown_default = expected, meaning, shown_default
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Setting[Value]: ...
    @overload
    def __get__(self, instance: Settings, owner: type) -> Value: ...
    def __get__(self, instance: Settings | None, owner: type) -> Value | Setting[Value]:
        if instance is None:
            return self
        if self.name in instance._overrides:
            value: Value = instance._overrides[self.name]
            return value
        text = os.environ.get(self.environment)
        return self.default() if text is None else self.read(text, self.environment)

    def __set__(self, instance: Settings, value: object) -> None:
        instance.set(**{self.name: value})

    def read(self, text: str, named: str) -> Value:
        """The value that `text` stands for; `SettingError` on `named` when it stands for none."""
        try:
            return self.parse(text)
        except ValueError as error:
            raise SettingError(named, text, f"expected {self.expected}") from error


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return parse


def _directory(text: str) -> Path:
    if not text:
        raise ValueError(text)
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # "~somebody" who does not exist
        raise ValueError(text) from error


def _user_directory(variable: str, below_home: str) -> Path:
    base = Path(os.environ.get(variable, ""))
    try:
        if not base.is_absolute():  # the XDG standard ignores a relative one
            base = Path.home() / below_home
    except RuntimeError:  # a container's user may have no home; the cache checks who owns it
        return Path(tempfile.gettempdir()) / f"shorthaul-{os.getuid()}"
    return base / "shorthaul"


def _positive_seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


def _positive_count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def _most_compilers() -> int:
    return min(8, len(os.sched_getaffinity(0)))


@functools.cache
def _most_row_buffer_bytes() -> int:
    return min(2**30, usable_bytes() // 16)


class Settings:
    """The settings of this process; `settings` below is the only instance anyone needs."""

    __slots__ = (
        "_overrides",
    )  # a misspelt `settings.engin = ...` is an error, not a new attribute

    cache_directory = Setting(
        "SHORTHAUL_CACHE",
        lambda: _user_directory("XDG_CACHE_HOME", ".cache"),
        _directory,
        "a directory",
        "where compiled kernels, tuning results and built data sets are kept",
        shown_default="$XDG_CACHE_HOME/shorthaul, else ~/.cache/shorthaul",
    )
    cache_limit_bytes = Setting(
        "SHORTHAUL_CACHE_LIMIT",
        lambda: 2 * 2**30,
        parse_bytes,
        "bytes such as '2GiB'",
        "size above which the least recently used kernels are removed",
    )
    state_directory = Setting(
        "SHORTHAUL_STATE",
        lambda: _user_directory("XDG_STATE_HOME", ".local/state"),
        _directory,
        "a directory",
        "where the bytes written to each drive are counted, across runs",
        shown_default="$XDG_STATE_HOME/shorthaul, else ~/.local/state/shorthaul",
    )
    scratch_directory = Setting(
        "SHORTHAUL_SCRATCH",
        lambda: Path(tempfile.gettempdir()),
        _directory,
        "a directory",
        "where data that lives no longer than the process is written",
        shown_default="the system's temporary directory",
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
    device_checks = Setting(
        "SHORTHAUL_DEVICE_CHECKS",
        lambda: "late",
        _one_of("late", "at_once"),
        "one of late, at_once",
        "wrong row ids on a GPU are found when it costs no wait, or the host waits for each gather",
    )
    autotune = Setting(
        "SHORTHAUL_AUTOTUNE",
        lambda: "on",
        _one_of("on", "off", "force"),
        "one of on, off, force",
        "measure and remember schedules, never measure, or measure again",
    )
    compiling = Setting(
        "SHORTHAUL_COMPILE",
        lambda: "background",
        _one_of("background", "wait"),
        "one of background, wait",
        "convolutions run by ATen until their kernels are compiled, or wait for the compiler",
    )
    compilers = Setting(
        "SHORTHAUL_COMPILERS",
        _most_compilers,
        _positive_count,
        "a positive whole number",
        "compilers that run at the same time",
        shown_default="as many as cores, at most 8",
    )
    compile_limit_seconds = Setting(
        "SHORTHAUL_COMPILE_SECONDS",
        lambda: 300.0,
        _positive_seconds,
        "a positive number of seconds",
        "time after which a compiler that hangs is stopped",
    )
    exchange_seconds = Setting(
        "SHORTHAUL_EXCHANGE_SECONDS",
        lambda: 300.0,
        _positive_seconds,
        "a positive number of seconds",
        "time that ranks wait for each other before they end with an error",
    )
    row_buffer_bytes = Setting(
        "SHORTHAUL_ROW_BUFFERS",
        _most_row_buffer_bytes,
        parse_bytes,
        "bytes such as '1GiB'",
        "memory that is kept and used again for gathered rows; 0 takes fresh memory each time",
        shown_default="1 GiB, or less: a sixteenth of what the process may use",
    )
    freed_memory = Setting(
        "SHORTHAUL_FREED_MEMORY",
        lambda: "reuse",
        _one_of("reuse", "return", "keep"),
        "one of reuse, return, keep",
        "once a process offloads, what tensors of 1 MiB and more free serves the next ones and never "
        "exceeds what was live at once, or goes back to the system at once, or is left to the C library",
    )
    progress = Setting(
        "SHORTHAUL_PROGRESS",
        lambda: "auto",
        _one_of("auto", "on", "off"),
        "one of auto, on, off",
        "progress bars; auto shows them on a terminal",
    )
    traceback = Setting(
        "SHORTHAUL_TRACEBACK",
        lambda: "off",
        _one_of("on", "off"),
        "one of on, off",
        "show where in the code an error of the command line came from",
    )

    def __init__(self) -> None:
        self._overrides: dict[str, Any] = {}

    @classmethod
    def all(cls) -> tuple[Setting[Any], ...]:
        """Every setting, in the order of this file."""
        return tuple(each for each in vars(cls).values() if isinstance(each, Setting))

    def set(self, **values: object) -> None:
        """Set values for this process; `None` gives a setting back to its environment variable.

        A value is read as the text of the environment variable would be, so
        `settings.set(cache_limit_bytes="4GiB")` works and a bad value is refused at once. When one
        value is refused, none is set.
        """
        known = {each.name: each for each in self.all()}
        overrides = dict(self._overrides)
        for name, value in values.items():
            if name not in known:
                raise UnknownSettingError(name, tuple(known))
            if value is None:
                overrides.pop(name, None)
            else:
                overrides[name] = known[name].read(str(value), f"settings.{name}")
        self._overrides = overrides

    @contextmanager
    def override(self, **values: object) -> Iterator[None]:
        """Set values for the duration of a `with` block, in all threads."""
        before = self._overrides
        self.set(**values)
        try:
            yield
        finally:
            others = {
                name: self._overrides[name] for name in self._overrides.keys() - values.keys()
            }
            self._overrides = others | {
                name: before[name] for name in before.keys() & values.keys()
            }


settings = Settings()
