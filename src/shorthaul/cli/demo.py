"""`shorthaul demo`: the same work done plainly and with shorthaul, on this machine.

Each act is played in processes of its own, one for each way of doing it, so that peak memory is that of
this way alone; they take turns step by step, so that a busy moment of the machine is shared. This process
imports no torch: the first words are there at once.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from shorthaul.cli.acts import theater
from shorthaul.cli.acts.page import format_page
from shorthaul.cli.acts.report import HEADINGS, WIDE, describe, rows_of
from shorthaul.cli.acts.stage import Act, Played, select
from shorthaul.cli.console import activity, json_option, make_console, print_json
from shorthaul.pages.charts import require_charts

ACTS = (
    Act(
        "offload",
        "shorthaul.cli.acts.offload",
        "A GPT trained with its activations in memory, and on disk",
        ("plain", "shorthaul"),
        tolerance=0.0,
    ),
    Act(
        "rgcn",
        "shorthaul.cli.acts.relational",
        "R-GCN trained by PyG or plain PyTorch, and compiled",
        ("plain", "shorthaul"),
        tolerance=5e-3,  # sums in another order, over the steps of a training
    ),
    Act(
        "rgat",
        "shorthaul.cli.acts.attention",
        "RGAT trained by PyG or plain PyTorch, and compiled",
        ("plain", "shorthaul"),
        tolerance=5e-3,
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
        "A CNN trained with PyTorch's convolutions, and with what is faster for each",
        ("plain", "shorthaul"),
        tolerance=1e-2,  # sums in another order, over the steps of a training
    ),
    Act(
        "bfloat16",
        "shorthaul.cli.acts.bfloat16",
        "The same CNN run for inference in bfloat16",
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

    Results are checked: exit code 1 when one of them did not hold.
    """
    if report is not None:
        if not report.parent.is_dir():
            raise click.BadParameter(
                f"there is no directory {report.parent}.", param_hint="--report"
            )
        require_charts()  # now rather than after minutes
    console = make_console()
    acts = select(ACTS, names)
    played: list[Played] = []
    for number, act in enumerate(acts, 1):
        if not as_json:
            console.print(Text(f"{number}/{len(acts)} {act.title}", "bold"))
        with activity(act.title) as say:
            played.append(theater.play(act, is_quick=quick, say=say))
        if not as_json:
            console.print(Text(f"    {describe_briefly(played[-1])}"))
    if as_json:
        print_json(describe(played))
    else:
        console.print(render(played, is_wide=console.width >= WIDE))
        for each in played:
            console.print(Text.assemble((each.act.name, "bold"), f": {each.sentence()}"))
    if report is not None:
        report.write_text(format_page(played), encoding="utf-8")
        click.echo(f"\nThe report: {report}", err=as_json)
    failed = [each.act.name for each in played if not each.holds]
    if failed:
        click.echo(f"Did not hold: {', '.join(failed)}.", err=True)
    context.exit(1 if failed else 0)


def describe_briefly(played: Played) -> str:
    """That an act is over."""
    return f"{'done' if played.holds else 'did not hold'}, {played.seconds:.0f} s"


def render(played: list[Played], *, is_wide: bool) -> Table:
    """A row for each act; where there is no room beside it, a ratio stands below its pair."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=True)
    for row in rows_of(played):
        cells = row if is_wide else [cell.replace(" (", "\n(") for cell in row]
        table.add_row(*map(Text, cells))
    return table
