"""`torch.cuda`, Triton's launches and the CUDA runtime of the pretended devices, with a log of them."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from triton.runtime import interpreter

DEVICES = 2


@dataclass(frozen=True)
class Launch:
    """One launch of a Triton kernel."""

    kernel: str
    grid: tuple[int, ...]
    device: int
    stream: int
    arguments: dict[str, Any]  # by name: addresses of tensors, and numbers


launches: list[Launch] = []
events: list[tuple[Any, ...]] = []  # what streams were told, in order
_library: Any = None
_is_capturing = False
_interpreting = threading.Lock()  # the interpreter changes Triton's language while it runs


_stream_numbers = itertools.count(1)
_CUDA = 1  # PyTorch's number of the kind of device


class Stream(torch.Stream):
    """A stream: what it is told is done at once."""

    def __new__(cls, device: Any = None, *, number: int | None = None, **_: Any) -> Stream:
        number = next(_stream_numbers) if number is None else number
        made: Stream = super().__new__(
            cls, stream_id=number, device_index=_index(device), device_type=_CUDA
        )
        return made

    @property
    def number(self) -> int:
        return int(self.stream_id)

    def wait_event(self, event: Event) -> None:
        events.append(("wait", self.number, event.number))

    def wait_stream(self, stream: Stream) -> None:
        events.append(("wait_stream", self.number, stream.number))

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        events.append(("synchronize stream", self.number))


class Event:
    """A mark that is passed at once."""

    _numbers = itertools.count(1)

    def __init__(self, **_: Any) -> None:
        self.number = next(Event._numbers)

    def record(self, stream: Stream | None = None) -> None:
        events.append(("record", (stream or current_stream()).number, self.number))

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        events.append(("synchronize event", self.number))

    def elapsed_time(self, other: Event) -> float:
        return float(max(1, other.number - self.number))


class _Current(threading.local):
    """The streams on which a thread computes, by device: its own, as PyTorch's are."""

    def __init__(self) -> None:
        self.streams = [Stream(each, number=-each) for each in range(DEVICES)]


_current: _Current


def _index(device: Any) -> int:
    if device is None:
        return int(_library.pretended_current_device())
    if isinstance(device, int):
        return device
    found = torch.device(device).index
    return int(_library.pretended_current_device()) if found is None else found


def current_stream(device: Any = None) -> Stream:
    """The stream on which PyTorch would compute."""
    return _current.streams[_index(device)]


@contextmanager
def stream(given: Stream | None) -> Iterator[None]:
    """Compute on another stream."""
    if given is None:
        yield
        return
    index = given.device.index
    before, device = _current.streams[index], _index(None)
    _current.streams[index] = given
    _library.pretended_set_device(index)
    try:
        yield
    finally:
        _current.streams[index] = before
        _library.pretended_set_device(device)


@contextmanager
def capturing() -> Iterator[None]:
    """As while a CUDA graph is captured: what is launched is done at once, and nothing may be waited for."""
    global _is_capturing
    _is_capturing = True
    try:
        yield
    finally:
        _is_capturing = False


def _exchange(device: int) -> int:
    before = int(_library.pretended_current_device())
    if device >= 0:
        _library.pretended_set_device(device)
    return before


class Runtime:
    """A CUDA runtime that maps all host memory into the pretended devices."""

    def register(self, address: int, length_bytes: int, flags: int) -> int:
        events.append(("register", address, length_bytes, flags))
        return 0

    def unregister(self, address: int) -> int:
        return 0

    def device_pointer(self, address: int) -> tuple[int, int]:
        return 0, address

    def describe(self, code: int) -> str:
        return f"code {code}"

    def clear_error(self) -> None:
        pass

    def synchronize(self, device: torch.device) -> None:
        events.append(("synchronize device", device.index))

    def view(
        self, pointer: int, length_bytes: int, device: torch.device, keeper: object
    ) -> torch.Tensor:
        from shorthaul.tensors.memory.dlpack import tensor_at

        host = tensor_at(pointer, length_bytes, torch.device("cpu"), keeper=keeper)
        return torch.ops.pretended.device_view(host, device.index)


def pretend(library: ctypes.CDLL) -> None:
    """Put it all in the place of PyTorch's own."""
    global _library, _current
    _library = library
    _current = _Current()
    properties = SimpleNamespace(
        name="pretended", total_memory=2**30, multi_processor_count=4, major=8, minor=0
    )
    patched = {
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: DEVICES,
        "current_device": lambda: _index(None),
        "set_device": lambda device: library.pretended_set_device(_index(device)),
        "_exchange_device": _exchange,
        "_maybe_exchange_device": lambda device: _exchange(device),  # Dynamo wants two functions
        "current_stream": current_stream,
        "stream": stream,
        "Stream": Stream,
        "Event": Event,
        "is_current_stream_capturing": lambda: _is_capturing,
        "synchronize": lambda device=None: events.append(("synchronize device", _index(device))),
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (8, 0),
        "get_device_name": lambda device=None: "pretended",
        "memory_allocated": lambda device=None: 2**20,
        "memory_reserved": lambda device=None: 2**21,
        "max_memory_allocated": lambda device=None: 2**21,
        "reset_peak_memory_stats": lambda device=None: None,
        "mem_get_info": lambda device=None: (2**29, 2**30),
    }
    for name, value in patched.items():
        setattr(torch.cuda, name, value)
    torch.__config__.show = lambda: (
        "pretended"
    )  # PyG asks, and torch would look for CUDA's own part
    torch.cuda.default_generators = tuple(torch.Generator() for _ in range(DEVICES))
    torch._C._cuda_getDevice = torch.cuda.current_device  # what Dynamo asks
    _pretend_launches()
    from shorthaul.tensors.cuda import gather, late_check, runtime

    for module in (gather, runtime):
        module.load_runtime = Runtime  # type: ignore[attr-defined]
    late_check.make_host_memory = lambda: torch.empty(2, dtype=torch.int64)


def _tell(value: Any) -> Any:
    return value.data_ptr() if isinstance(value, torch.Tensor) else value


def _pretend_launches() -> None:
    run = interpreter.GridExecutor.__call__

    def launch(self: Any, *arguments: Any, **options: Any) -> Any:
        device = _index(None)
        name = self.fn.__name__

        def seen(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if value.device != torch.device("cuda", device):
                raise AssertionError(
                    f"{name} is launched on cuda:{device} with a tensor on {value.device}"
                )
            return torch.ops.pretended.host_view(value)

        grid = self.grid
        if callable(grid):
            grid = grid(options)
        given = dict(zip(self.arg_names, arguments, strict=False)) | options
        told = {key: _tell(each) for key, each in given.items()}
        launches.append(Launch(name, tuple(grid), device, current_stream().number, told))
        with _interpreting:
            return run(
                self, *map(seen, arguments), **{key: seen(each) for key, each in options.items()}
            )

    interpreter.GridExecutor.__call__ = launch  # type: ignore[method-assign]
