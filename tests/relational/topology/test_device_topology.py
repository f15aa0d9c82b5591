"""Lists that are moved once: shown with PyTorch's device without memory, as there is no GPU here."""

import torch

from shorthaul.relational.ir.spaces import Space
from shorthaul.relational.topology.device_topology import on_device
from shorthaul.relational.topology.topology import Topology
from tests.relational.programs import sample_graph

META = torch.device("meta")


def test_every_list_is_on_the_device_and_moved_once():
    host = Topology.of(sample_graph())
    there = on_device(host, META)
    assert on_device(host, META) is there
    assert there.rows(Space.SOURCE_PAIR) == host.rows(Space.SOURCE_PAIR)
    for question, arguments in [
        ("way", (Space.EDGE, "source")),
        ("members", (Space.EDGE, "source_pair")),
        ("count", (Space.EDGE, "target", torch.float32)),
        ("tiles", (Space.SOURCE_PAIR, "relation", 4)),
        ("buckets", (Space.EDGE, "target", (16,))),
    ]:
        here = getattr(host, question)(*arguments)
        moved = getattr(there, question)(*arguments)
        again = getattr(there, question)(*arguments)
        if isinstance(moved, torch.Tensor):
            here, moved, again = (here,), (moved,), (again,)
        for one, other, third in zip(here, moved, again, strict=True):
            assert other is third
            if one is not None:
                assert other.device == META
                assert other.shape == one.shape
                assert other.dtype is one.dtype


def test_a_topology_on_its_own_device_is_itself():
    host = Topology.of(sample_graph())
    assert on_device(host, torch.device("cpu")) is host
    assert on_device(host, META).edge_ids.device == META
