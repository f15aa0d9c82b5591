"""Inside the process of an unedited script: before its first line, and after its last."""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from shorthaul.errors import MissingExtraError
from shorthaul.integrations.run import STARTUP, RunWishes, take_wishes
from shorthaul.integrations.script_report import ScriptReport
from shorthaul.meter import meter

if TYPE_CHECKING:  # it needs torch
    from shorthaul.integrations.script_models import ScriptModels


_UNANSWERED = "the script ended before a model was called in training after a backward pass"


def begin() -> None:
    """Make ready what was asked for, and leave to the script the process that it expects."""
    try:
        wishes = take_wishes(os.environ)
        if str(STARTUP) in sys.path:
            sys.path.remove(str(STARTUP))
        if wishes is not None:
            ScriptProcess(wishes).begin()
    except Exception as error:  # Python would go on without what was asked for
        _end_at_once(f"shorthaul run: {type(error).__name__}: {error}")
    _run_own_sitecustomize()


def _end_at_once(message: str) -> NoReturn:
    """End before the script begins: an exception here, `SystemExit` too, is a fatal error of Python's."""
    print(message, file=sys.stderr, flush=True)
    os._exit(1)


def _run_own_sitecustomize() -> None:
    """Run the module of that name that Python would have found without us."""
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


class ScriptProcess:
    """The script's process from beginning to end."""

    def __init__(self, wishes: RunWishes) -> None:
        self.wishes = wishes
        self.models: ScriptModels | None = None  # once the script has imported torch
        self._process = os.getpid()
        self._began_at = time.perf_counter()
        self._metering = meter()
        self._meter = self._metering.__enter__()

    def begin(self) -> None:
        """Wait for torch, and for the end."""
        # Registered before all of the script's own, so that it comes after them.
        atexit.register(self.end)
        sys.meta_path.insert(0, AfterImport("torch", self._watch_models))

    def _watch_models(self) -> None:
        from shorthaul.integrations.script_models import ScriptModels

        self.models = ScriptModels(self.wishes)
        self.models.install()

    def end(self) -> None:
        """Tell what was done, in the process that was started and in no fork of it."""
        if os.getpid() != self._process:
            return
        seconds = time.perf_counter() - self._began_at
        if self.wishes.question is not None:
            if self.models is None or not self.models.is_answered:
                print(f"shorthaul {self.wishes.question}: {_UNANSWERED}", file=sys.stderr)
            return
        self._metering.__exit__(None, None, None)
        report = ScriptReport.make(self.wishes, self.models, self._meter, seconds)
        path = self.wishes.report_path
        if path is not None:
            try:
                report.write(path)
            except (
                OSError,
                MissingExtraError,
            ) as error:  # what the script did is done: its exit code stays
                print(f"shorthaul run: no report was written: {error}", file=sys.stderr)
        if int(os.environ.get("RANK", "0")) == 0:
            print(report.describe(), file=sys.stderr)


class AfterImport(MetaPathFinder):
    """Calls a function once, as soon as a module has been imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, with a loader that also calls the function."""
        del path, target
        if name != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_tell(module: ModuleType) -> None:
            loader.exec_module = execute
            execute(module)
            self.then()

        loader.exec_module = execute_and_tell
        return spec
