"""The recorded streams keep CUDA's rules; PyTorch's own have the same methods."""

import inspect

import torch

from shorthaul.offload.device.streams import CudaStreams, StreamBackend
from tests.offload.recorded_streams import RecordedStreams

DEVICE = torch.device("cuda", 0)


def _signatures(kind: type) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(method).parameters)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_all_backends_have_the_same_methods() -> None:
    wanted = _signatures(StreamBackend)
    assert len(wanted) == 10
    assert _signatures(CudaStreams) == wanted
    recorded = _signatures(RecordedStreams)
    assert {name: recorded[name] for name in wanted} == wanted


def test_a_stream_waits_for_a_mark_of_another() -> None:
    streams = RecordedStreams()
    side = streams.make_stream(DEVICE)
    done: list[str] = []
    streams.compute_next(lambda: done.append("computed"))
    mark = streams.record_event(streams.compute)
    streams.wait_event(side, mark)
    target = torch.zeros(2)
    streams.copy(target, torch.ones(2), side)
    side.run()
    assert target.sum() == 0
    assert not streams.is_done(mark)
    streams.run()
    assert done == ["computed"]
    assert target.sum() == 2
    assert streams.is_done(mark)
