"""`shorthaul explain`: how a kernel, layer or plan came to be, stage by stage."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import click

from shorthaul.cli.cache import read_contents, require_kernels
from shorthaul.explain import explain as explain_subject

if TYPE_CHECKING:  # they need torch
    from shorthaul.jit import CacheEntry
    from shorthaul.relational.compiled_layer import LayerDefinition


@click.command()
@click.argument("subject", metavar="MODULE:OBJECT|KERNEL")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="NAME=NUMBER",
    help="A width or option of a @layer function, such as width=64; may be repeated.",
)
@click.option("--relations", type=click.IntRange(min=0), help="Relations of the graph (10).")
@click.option("--node-types", type=click.IntRange(min=1), help="Types of nodes (1).")
@click.option("--nodes", type=click.IntRange(min=0), help="Nodes of a random graph (10,000).")
@click.option("--edges", type=click.IntRange(min=0), help="Edges of a random graph (100,000).")
@click.option(
    "--graph",
    "path",
    type=click.Path(exists=True),
    help="Estimate for the graph in this file or folder.",
)
@click.option("--inference", is_flag=True, help="Leave the backward pass out.")
@click.option("--stage", help="One stage: source, compact, kernels, estimate, generated, ...")
@click.option(
    "--picture", type=click.Path(dir_okay=False), help="Also draw the flow of data, as *.svg."
)
@click.option("--roofline", is_flag=True, help="Measure this machine; show the best times.")
def explain(subject: str, **options: Any) -> None:
    """Print every stage of something that shorthaul made.

    MODULE:OBJECT is imported, with the current directory on the path: `my_layers:attention`. KERNEL is
    the name of a compiled kernel, or the beginning of its digest. The options are for functions with
    @layer, which are compiled for the widths and the graph that are given.
    """
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if ":" not in subject:
        _refuse_options(subject, given)
        found = require_kernels(read_contents(), subject)
        click.echo("\n\n".join(explain_entry(each) for each in found))
        return
    imported = import_object(subject)
    if _is_layer_function(imported):
        click.echo(explain_layer(imported, subject, **options))
    else:
        _refuse_options(subject, given)
        click.echo(explain_subject(imported))


def _is_layer_function(found: object) -> TypeGuard[LayerDefinition]:
    # If nobody has imported it, the object is none; importing it to ask would take seconds.
    module = sys.modules.get("shorthaul.relational.compiled_layer")
    return module is not None and isinstance(found, module.LayerDefinition)


def _refuse_options(subject: str, given: list[str]) -> None:
    if given:
        raise click.UsageError(
            f"{', '.join(given)}: options are for functions with @layer, and {subject} is none."
        )


def explain_layer(
    definition: LayerDefinition,
    subject: str,
    *,
    sizes: tuple[str, ...],
    relations: int | None,
    node_types: int | None,
    nodes: int | None,
    edges: int | None,
    path: str | None,
    inference: bool,
    stage: str | None,
    picture: str | None,
    roofline: bool,
) -> str:
    """Every stage of a `@layer` function at these widths, for this graph."""
    from shorthaul.relational.inspection.explain import explain_definition, guess_sizes
    from shorthaul.relational.planning.estimate import Machine

    if path is None:
        graph_sizes = guess_sizes(
            nodes=10_000 if nodes is None else nodes,
            edges=100_000 if edges is None else edges,
            relations=10 if relations is None else relations,
            node_types=node_types or 1,
        )
    elif (relations, node_types, nodes, edges) == (None, None, None, None):
        graph_sizes = read_graph_sizes(path)
    else:
        raise click.UsageError(
            "--graph has its own --relations, --node-types, --nodes and --edges."
        )
    widths = parse_widths(sizes)
    _require_options(definition, widths, subject)
    explained = explain_definition(
        definition, widths, graph_sizes, gradients=[] if inference else None
    )
    if picture is not None:
        explained.save_picture(picture)
    return explained.text(stage, Machine.measure() if roofline else None)


def _require_options(definition: LayerDefinition, widths: dict[str, int], subject: str) -> None:
    parameters = inspect.signature(definition.function).parameters
    missing = [
        name
        for name in definition.options
        if name not in widths and parameters[name].default is inspect.Parameter.empty
    ]
    if missing:
        wanted = " ".join(f"--size {name}=..." for name in missing)
        raise click.UsageError(f"{subject} needs {wanted}.")


def parse_widths(texts: tuple[str, ...]) -> dict[str, int]:
    """The numbers in `width=64`.

    >>> parse_widths(("width=64", "heads=4"))
    {'width': 64, 'heads': 4}
    """
    found = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not name.isidentifier() or not number.isdigit():
            raise click.UsageError(f"expected --size NAME=NUMBER such as width=64, got {text!r}.")
        found[name] = int(number)
    return found


def read_graph_sizes(path: str) -> Any:
    """The sizes of a graph that was saved by shorthaul, or that one of its readers can read."""
    from shorthaul.graphs import RelationalGraph
    from shorthaul.graphs.saving import DESCRIPTION
    from shorthaul.relational.passes.rewriting import GraphSizes
    from shorthaul.relational.topology.topology import Topology

    is_saved = (Path(path) / DESCRIPTION).exists()
    graph = RelationalGraph.open(path, in_memory=True) if is_saved else RelationalGraph.read(path)
    return GraphSizes.of(Topology.of(graph))


def explain_entry(entry: CacheEntry) -> str:
    """The stages of a compiled kernel that is not loaded: command and source, as they were."""
    command = (entry.directory / "compile.sh").read_text()
    source = (entry.directory / "kernel.cpp").read_text().rstrip()
    return (
        f"{entry.name}_{entry.digest[:8]}\n"
        f"in {entry.directory}, compiled in {entry.compile_seconds:.2f} s by\n{command}\n{source}"
    )


def import_object(path: str) -> object:
    """The object that `module:object.attribute` names, or an error that says which part is wrong."""
    module_name, _, names = path.partition(":")
    if not module_name or not names:
        raise click.UsageError(f"expected MODULE:OBJECT such as my_layers:layer, got {path!r}.")
    found: object = _import_module(module_name)
    for name in names.split("."):
        if not hasattr(found, name):
            close = difflib.get_close_matches(name, dir(found), n=3)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise click.ClickException(f"{path}: there is no {name!r}.{hint}")
        found = getattr(found, name)
    return found


def _import_module(name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise click.ClickException(
                f"there is no module {name!r}, neither installed nor in {here}."
            ) from error
        raise click.ClickException(_describe_failed_import(name, error)) from error
    except Exception as error:
        raise click.ClickException(_describe_failed_import(name, error)) from error


def _describe_failed_import(name: str, error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"importing {name} failed: {type(error).__name__}: {error}\n"
        f"  in {place.filename}, line {place.lineno}: {place.line}"
    )
