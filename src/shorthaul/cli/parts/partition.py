"""`shorthaul partition`: a graph and its features, cut into parts for training on several machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shorthaul.cli.console import activity, json_option, make_console, print_json

if TYPE_CHECKING:
    from shorthaul.graphs import RelationalGraph


@click.command()
@click.argument("graph", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--parts", type=click.IntRange(min=1), required=True, help="The number of parts.")
@click.option(
    "--method",
    type=click.Choice(("range", "metis", "stream")),
    default="stream",
    show_default=True,
    help="How to cut; metis needs the extra `partition` and all edges in memory.",
)
@click.option(
    "--hot",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="The share of rows that every rank keeps, the likeliest in a batch first: 0.05.",
)
@click.option("--features", multiple=True, metavar="[TYPE=]FILE", help="A table of features.")
@click.option("--labels", multiple=True, metavar="[TYPE=]FILE", help="A table of labels.")
@click.option("--seeds", multiple=True, metavar="[TYPE=]FILE", help="Ids to train on.")
@click.option("--fan-outs", default="15,10,5", show_default=True, help="Neighbors drawn per hop.")
@click.option("--batch-size", type=click.IntRange(min=1), default=1024, show_default=True)
@click.option(
    "--passes", type=click.IntRange(min=1), default=3, show_default=True, help="Passes of stream."
)
@click.option(
    "--topology",
    type=click.Choice(("replicated", "split")),
    default="replicated",
    show_default=True,
    help="All edges in one place, for every machine, or those into a part's nodes in the part.",
)
@click.option("--start-over", is_flag=True, help="Remove parts in OUT, whole ones too.")
@json_option
def partition(
    graph: Path,
    out: Path,
    parts: int,
    method: str,
    hot: float,
    features: tuple[str, ...],
    labels: tuple[str, ...],
    seeds: tuple[str, ...],
    fan_outs: str,
    batch_size: int,
    passes: int,
    topology: str,
    start_over: bool,
    as_json: bool,
) -> None:
    """Cut a graph into parts, one for each machine.

    `sh.distributed.open` reads OUT. GRAPH is a folder made by `graph.save`, which is streamed, or a file that
    `RelationalGraph.read` takes, which is read into memory. FILE is a table as `sh.open` takes it; TYPE
    is the type of its nodes, where there are several. A run that was stopped continues when it is started
    again with the same arguments, and parts that are whole are left as they are. OUT must be empty, or hold parts.
    """
    from shorthaul.distributed import partition as cut

    opened = _open_graph(graph)
    with activity("reading the graph") as tell:
        report = cut(
            opened,
            out,
            parts,
            features=_open_tables(opened, features, "--features"),
            labels=_open_tables(opened, labels, "--labels"),
            seeds=_read_seeds(opened, seeds),
            method=method,
            hot=hot,
            fan_outs=_read_fan_outs(fan_outs),
            batch_size=batch_size,
            passes=passes,
            topology=topology,
            start_over=start_over,
            tell=tell,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        make_console().print(report.table())


def _open_graph(path: Path) -> RelationalGraph:
    from shorthaul.graphs import RelationalGraph

    if (path / "graph.json").exists():
        return RelationalGraph.open(path)
    return RelationalGraph.read(path)


def _split(graph: RelationalGraph, words: Sequence[str], option: str) -> dict[str, str]:
    found = {}
    for each in words:
        kind, _, path = each.rpartition("=")
        if not kind and len(graph.node_types) > 1:
            raise click.BadParameter(
                f"{each} is of no type; write TYPE={each} with one of {', '.join(graph.node_types)}.",
                param_hint=option,
            )
        found[kind or graph.node_types[0]] = path
    return found


def _open_tables(graph: RelationalGraph, words: Sequence[str], option: str) -> Any:
    from shorthaul.tensors import open as open_table

    found = {kind: open_table(path) for kind, path in _split(graph, words, option).items()}
    return found or None


def _read_seeds(graph: RelationalGraph, words: Sequence[str]) -> Any:
    from shorthaul.tensors import open as open_table

    found = {}
    for kind, path in _split(graph, words, "--seeds").items():
        table = open_table(path)
        found[kind] = table.cpu().flatten()
    return found or None


def _read_fan_outs(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError as error:
        raise click.BadParameter(
            f"expected whole numbers with commas in between, such as 15,10,5; got {text!r}.",
            param_hint="--fan-outs",
        ) from error
