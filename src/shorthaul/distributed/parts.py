"""`open`: a folder of parts as one rank sees it, agreed on by all ranks before anything is read."""

from __future__ import annotations

import functools
import itertools
import json
import os
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from shorthaul.distributed.checked_files import FilesToCheck, check_files
from shorthaul.distributed.partition.book import PartitionBook
from shorthaul.distributed.partition.manifest import (
    MANIFEST,
    Manifest,
    TableFacts,
    hot_file,
    hot_ids_file,
    originals_file,
    part_file,
    seeds_file,
)
from shorthaul.distributed.partition.mapped import describe_graph, map_file, map_topology
from shorthaul.distributed.ranks.agreement import read_together, require_equal, share_problem
from shorthaul.distributed.ranks.line import Line
from shorthaul.distributed.ranks.wire import Wire
from shorthaul.distributed.ranks.world import (
    Peer,
    World,
    describe_parts,
    describe_self,
    find_world,
)
from shorthaul.distributed.tables.distributed_table import DistributedTable
from shorthaul.distributed.tables.gather_plan import Placement
from shorthaul.distributed.tables.near_rows import STORAGES, NearRows, Storage, open_rows
from shorthaul.distributed.tables.wire_format import WireFormat, WireName, plan_wire_format
from shorthaul.distributed.topology.held_rows import HeldRows
from shorthaul.distributed.topology.opening import (
    Topology,
    Wanted,
    agree_on_topology,
    choose_topology,
    open_held_rows,
)
from shorthaul.errors import RankSetupError, RowArgumentError
from shorthaul.graphs import Relation, RelationalGraph
from shorthaul.jit.outside_graphs import outside_graphs
from shorthaul.settings import settings
from shorthaul.tensors.tables.table import RowTable

_COPY = "Copy the folder anew to the machines of the ranks that differ, or cut the graph again."


class Parts:
    """A graph and its tables over all ranks. Made by `sh.distributed.open`.

    Attributes of use: `rank` and `ranks`, `graph` (mapped, under the parts' numbers), `relations`, `book`
    (who owns what), `topology` (`"replicated"` or `"split"`), `peers` (who the ranks are), `version`.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        world: World,
        peers: tuple[Peer, ...],
        line: Line,
        topology: Topology,
        *,
        shares_machine: bool,
    ) -> None:
        self.folder, self.manifest, self.peers, self.line = folder, manifest, peers, line
        self.world, self.topology = world, topology
        self.version = manifest.version
        self.book: PartitionBook = manifest.book.merged(world.ranks)
        self._shares_machine = shares_machine
        self._names = itertools.count()
        self._lines: weakref.WeakSet[Line] = weakref.WeakSet()
        self._starts = manifest.book.parts_of_ranks(world.ranks)

    @property
    def rank(self) -> int:
        """This process's number."""
        return self.world.rank

    @property
    def ranks(self) -> int:
        """How many take part."""
        return self.world.ranks

    @property
    def described(self) -> str:
        """This rank's parts, in words."""
        return self.peers[self.rank].parts

    @functools.cached_property
    def graph(self) -> RelationalGraph:
        """The topology of all parts, mapped: a page is read when it is touched."""
        if self.topology == "split":
            raise RankSetupError(
                "the topology of these parts is split: each rank holds the incoming edges of its own nodes, and "
                "none the whole graph.\n  `sh.distributed.MiniBatchLoader` and `WholeGraph` work with it; "
                "`parts.relations` and `parts.book` describe it. Whatever else needs the graph needs parts that "
                'were opened with topology="replicated".'
            )
        return map_topology(self.folder, self.manifest)

    @functools.cached_property
    def described_graph(self) -> RelationalGraph:
        """Types and relations of the graph, without its edges."""
        return describe_graph(self.manifest)

    @property
    def relations(self) -> tuple[Relation, ...]:
        """Of the graph, whatever its topology."""
        return self.described_graph.relations

    @functools.cached_property
    def held_rows(self) -> HeldRows:
        """The incoming edges that this rank reads of a split topology: of its nodes, and of ranks beside it."""
        return open_held_rows(self.folder, self.manifest, self.near_parts)

    def features(
        self,
        node_type: str | None = None,
        *,
        wire: WireName | None = None,
        storage: Storage = "mapped",
        hot: bool = True,
    ) -> DistributedTable:
        """The table that `partition` was given as `features`; all ranks call it, in the same order.

        Args:
            node_type: Whose; None (default) where there is one type with such a table.
            wire: `"bfloat16"` or `"int8"` (with a scale for each row) for rows that travel in fewer
                bytes and arrive rounded; None (default) sends them as they are.
            storage: Where a rank's own rows are: `"mapped"` (default), which ranks of a machine
                share, `"memory"` for a copy, or `"disk"` for direct reads.
            hot: Whether rows that were chosen as hot are read from the copy (default True).
        """
        return self.table("features", node_type, wire=wire, storage=storage, hot=hot)

    def labels(self, node_type: str | None = None) -> DistributedTable:
        """The table that `partition` was given as `labels`; all ranks call it, in the same order.

        Args:
            node_type: Whose; None (default) where there is one type with such a table.
        """
        return self.table("labels", node_type)

    @outside_graphs
    def table(
        self,
        name: str,
        node_type: str | None = None,
        *,
        wire: WireName | None = None,
        storage: Storage = "mapped",
        hot: bool = True,
    ) -> DistributedTable:
        """Any table by its name; all ranks call it, in the same order.

        Its arguments are those of `Parts.features`, and:

        Args:
            name: As `partition` was given it.
        """

        def read() -> tuple[str, TableFacts, WireFormat]:
            if storage not in STORAGES:
                raise RowArgumentError("storage", f"one of {', '.join(STORAGES)}", repr(storage))
            kind, facts = self._find_table(name, node_type)
            dtype = getattr(torch, facts.dtype)
            return kind, facts, plan_wire_format(wire, dtype, facts.row_shape)

        what = f"the arguments of a table `{name}`"
        kind, facts, form = read_together(self.line, what, self.described, read)
        words = f"{kind}.{name}"
        line = self.make_line(f"table {words}, {wire}, {next(self._names)}")
        own = range(self._starts[self.rank], self._starts[self.rank + 1])
        problem: Exception | None = None
        try:
            tables = {
                part: open_rows(
                    self.folder / part_file(part, kind, name, facts.suffix),
                    storage if part in own else "mapped",
                )
                for part in self.near_parts
            }
            hot_ids, hot_rows = self._open_hot(kind, name, facts, is_wanted=hot)
        except Exception as error:
            tables, problem = {}, error
            hot_ids, hot_rows = torch.empty(0, dtype=torch.int64, device="cpu"), None
        line.run(f"opening `{words}`", lambda on: share_problem(on, problem, self.described))
        offsets = self.manifest.offsets[kind]
        near = tuple(self.near_parts)
        placement = Placement(self.book.offsets[kind], offsets, near, hot_ids)
        return DistributedTable(
            kind,
            name,
            (offsets[-1], *facts.row_shape),
            form,
            placement,
            NearRows(offsets, tables),
            hot_rows,
            line,
            own,
            self.described,
        )

    def own_rows(self, node_type: str) -> dict[int, range]:
        """For each part of this rank its rows, counted from this rank's first.

        Args:
            node_type: Of which type.
        """
        offsets = self.manifest.offsets[node_type]
        first = offsets[self._starts[self.rank]]
        return {
            part: range(offsets[part] - first, offsets[part + 1] - first)
            for part in range(self._starts[self.rank], self._starts[self.rank + 1])
        }

    @property
    def near_parts(self) -> list[int]:
        """Parts whose files this rank reads: its own, and those of ranks on its machine."""
        mine = self.peers[self.rank].machine
        found: list[int] = []
        for peer in self.peers:
            is_near = self._shares_machine and peer.machine == mine
            if peer.rank == self.rank or is_near:
                found += range(self._starts[peer.rank], self._starts[peer.rank + 1])
        return found

    def seeds(self, node_type: str | None = None) -> torch.Tensor:
        """What `partition` was told is trained on: ids within the type, under the parts' numbers.

        Args:
            node_type: Of which type; None (default) where there is one with seeds.
        """
        kinds = self.manifest.seeds
        kind = _only("seeds", kinds) if node_type is None else node_type
        if kind not in kinds:
            raise RowArgumentError("node_type", f"one of {', '.join(kinds)}", repr(kind))
        return map_file(self.folder / seeds_file(kind)).long()

    def originals(self, node_type: str | None = None) -> torch.Tensor:
        """For each id of the parts, the one that the graph had before it was cut, within its type.

        Args:
            node_type: Of which type; None (default) where there is one.
        """
        kind = _only("node types", self.book.node_types) if node_type is None else node_type
        self.book.count(kind)
        return map_file(self.folder / originals_file(kind))

    def make_line(self, name: str) -> Line:
        """A way between all ranks for one more user; all ranks make it, in the same order.

        Args:
            name: What it is for, the same on all ranks.
        """
        line = Line(
            self.world,
            timeout_seconds=self.line.timeout_seconds,
            peers=self.peers,
            name=name,
        )
        self._lines.add(line)
        remedy = (
            "Make tables and loaders in the same order and with the same arguments on all ranks."
        )
        line.run(
            f"setting up {name}", lambda wire: require_equal(wire, "what is made", name, remedy)
        )
        return line

    def close(self) -> None:
        """End the threads and process groups of the parts, and of all tables and loaders made of them.

        What was submitted is still exchanged, and nobody is waited for. It also happens, one by one, when
        nothing refers to parts, tables and loaders any more.
        """
        for each in (*self._lines, self.line):
            each.close()

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find_table(self, name: str, node_type: str | None) -> tuple[str, TableFacts]:
        having = [kind for kind, tables in self.manifest.tables.items() if name in tables]
        kind = _only(f"tables `{name}`", having) if node_type is None else node_type
        if kind not in having:
            expected = f"a type with a table `{name}`: {', '.join(having) or 'there is none'}"
            raise RowArgumentError("node_type", expected, repr(kind))
        return kind, self.manifest.tables[kind][name]

    def _open_hot(
        self, kind: str, name: str, facts: TableFacts, *, is_wanted: bool
    ) -> tuple[torch.Tensor, RowTable | None]:
        if not is_wanted or not self.manifest.hot.get(kind):
            return torch.empty(0, dtype=torch.int64, device="cpu"), None
        ids = map_file(self.folder / hot_ids_file(kind)).long()
        return ids, open_rows(self.folder / hot_file(kind, name, facts.suffix), "mapped")

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.book.count(each):,} {each}" for each in self.book.node_types)
        return f"Parts(rank {self.rank} of {self.ranks}, {self.described}: {counts})"


@outside_graphs
def open(
    folder: str | os.PathLike[str],
    *,
    topology: Wanted = "auto",
    shares_machine: bool = True,
    checksums: bool = True,
    timeout_seconds: float | None = None,
) -> Parts:
    """The parts in `folder`, as the rank of this process sees them.

    A process alone owns all parts; under `torchrun`, after `init_process_group`, each rank owns those of
    its number (some in succession where there are more parts than ranks). All ranks call it, and an
    error of one, a missing file or another version of the parts, is an error on all of them.

    Args:
        folder: What `partition` wrote; on another machine, a copy that holds what `open` checks there.
        topology: `"replicated"`, where every machine maps the whole topology and samples by itself;
            `"split"`, where each rank holds the edges into its own nodes and draws for all; `"auto"`
            (default) splits what takes more than half of the memory of any machine.
        shares_machine: Whether ranks that open the very same files read each other's parts directly
            instead of sending rows (default True).
        checksums: Whether this rank's files are read once and compared with their checksums
            (default True); otherwise those that hold ids are, and tables with their sizes alone.
        timeout_seconds: How long ranks wait for each other before they end with an error; None
            (default) takes the setting `exchange_seconds`.
    """
    place = Path(folder)
    world = find_world()
    seconds = settings.exchange_seconds if timeout_seconds is None else timeout_seconds
    manifest: Manifest | None = None
    problem: Exception | None = None
    words = f"the parts of rank {world.rank}"
    chosen: Topology = "replicated"
    try:
        if not seconds > 0:
            seconds = settings.exchange_seconds  # for as long as it takes to tell the others
            raise RowArgumentError("timeout_seconds", "a positive number", repr(timeout_seconds))
        manifest = Manifest.read(place)
        manifest.book.merged(world.ranks)
        starts = manifest.book.parts_of_ranks(world.ranks)
        words = describe_parts(starts[world.rank], starts[world.rank + 1])
        chosen = choose_topology(topology, manifest)
    except Exception as error:
        problem = error
    me = describe_self(world.rank, words, place / MANIFEST if manifest else None)
    known = [
        me if each == world.rank else Peer(each, "", "", 0, "", "") for each in range(world.ranks)
    ]
    line = Line(world, timeout_seconds=seconds, peers=known, name="parts")

    def meet(wire: Wire) -> tuple[tuple[Peer, ...], Topology]:
        share_problem(wire, problem, words)
        assert manifest is not None
        shown = f"version {manifest.version} of {words} in {place}"
        require_equal(wire, "the parts", manifest.version, _COPY, shown=shown)
        told = wire.gather_texts(json.dumps(asdict(me)))
        agreed = agree_on_topology(wire, topology, chosen)
        return tuple(Peer(**json.loads(each)) for each in told), agreed

    peers, agreed = line.run(f"opening {place}", meet)
    assert manifest is not None
    line.know(peers)
    parts = Parts(place, manifest, world, peers, line, agreed, shares_machine=shares_machine)
    files = FilesToCheck(
        place,
        manifest,
        tuple(parts.near_parts),
        tuple(range(starts[world.rank], starts[world.rank + 1])),
        tuple(each.rank for each in peers if each.machine == me.machine),
        world.rank,
    )
    check_files(line, files, words, checksums=checksums)
    return parts


def _only(what: str, names: Any) -> str:
    found = list(names)
    if len(found) != 1:
        raise RowArgumentError(
            "node_type", "the name of a type", f"None, but there are {len(found)} {what}"
        )
    return str(found[0])
