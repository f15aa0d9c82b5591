"""`shorthaul demo`: the same work done plainly and with shorthaul, on this machine.

Each act is played in processes of its own, one for each way of doing it, so that time and peak memory are
those of that way alone. This process imports no torch: the first words are there at once.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from shorthaul.cli.acts import theater
from shorthaul.cli.acts.page import format_page
from shorthaul.cli.acts.report import HEADINGS, describe, rows_of
from shorthaul.cli.acts.stage import Act, Played, select
from shorthaul.cli.console import activity, json_option, make_console, print_json

ACTS = (
    Act(
        "offload",
        "shorthaul.cli.acts.offload",
        "A GPT trained with its activations in memory, and on disk",
        ("plain", "shorthaul"),
        tolerance=0.0,
    ),
    Act(
        "relational",
        "shorthaul.cli.acts.relational",
        "R-GCN trained by plain PyTorch, and compiled",
        ("plain", "shorthaul"),
        tolerance=5e-3,  # sums in another order, over the steps of a training
    ),
    Act(
        "tensors",
        "shorthaul.cli.acts.tensors",
        "GraphSAGE trained on features that a memory limit has no room for",
        ("plain", "plain, limited", "shorthaul"),
        tolerance=0.0,
        must_fail="plain, limited",
    ),
    Act(
        "distributed",
        "shorthaul.cli.acts.distributed",
        "Mini-batches of two ranks that own a half each",
        ("plain", "shorthaul"),
        tolerance=0.0,
        is_same_work=False,
    ),
    Act(
        "conv",
        "shorthaul.cli.acts.conv",
        "A CNN trained with PyTorch's convolutions, and with the faster of two",
        ("plain", "shorthaul"),
        tolerance=1e-2,  # sums in another order, over the steps of a training
    ),
    Act(
        "bfloat16",
        "shorthaul.cli.acts.bfloat16",
        "That CNN asked in bfloat16",
        ("plain", "shorthaul"),
        tolerance=2e-2,  # bfloat16 has eight bits, and sums are rounded in other places
    ),
)


@click.command()
@click.option("--quick", is_flag=True, help="Smaller models and fewer steps.")
@click.option(
    "--act",
    "names",
    type=click.Choice([each.name for each in ACTS]),
    multiple=True,
    help="Show this act alone; may be repeated.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write an HTML page to this file.",
)
@json_option
@click.pass_context
def demo(
    context: click.Context, quick: bool, names: tuple[str, ...], report: Path | None, as_json: bool
) -> None:
    """Show shorthaul at work here, beside plain PyTorch.

    What it does is checked: exit code 1 when something that was shown did not hold.
    """
    if report is not None and not report.parent.is_dir():
        raise click.BadParameter(f"there is no directory {report.parent}.", param_hint="--report")
    console = make_console()
    played: list[Played] = []
    for number, act in enumerate(select(ACTS, names), 1):
        if not as_json:
            console.print(Text(f"{number}. {act.title}", "bold"))
        with activity(act.title) as say:
            played.append(theater.play(act, is_quick=quick, say=say))
        if not as_json:
            console.print(f"   {played[-1].sentence()}")
    if as_json:
        print_json(describe(played))
    else:
        console.print(render(played))
    if report is not None:
        report.write_text(format_page(played), encoding="utf-8")
        click.echo(f"written: {report}", err=as_json)
    failed = [each.act.name for each in played if not each.holds]
    if failed:
        click.echo(f"Did not hold: {', '.join(failed)}.", err=True)
    context.exit(1 if failed else 0)


def render(played: list[Played]) -> Table:
    """One table of everything."""
    table = Table()
    for heading in HEADINGS:
        is_number = heading not in ("act", "run")
        table.add_column(heading, overflow="fold", justify="right" if is_number else "left")
    for row in rows_of(played):
        table.add_row(*(Text(cell) for cell in row))
    return table
