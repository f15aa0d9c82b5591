"""`shorthaul demo`: shorthaul at work on this machine, act by act.

Each act shows one thing and checks it; each part of shorthaul adds its own to `ACTS`. Everything
runs under one meter, and everything shown is also written to `demo.md` and `demo.json`. An act imports
what it needs when it is shown: `shorthaul --help` must not wait for torch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from shorthaul.cli.acts.report import write_report
from shorthaul.cli.acts.stage import Act, Outcome, Played, Stage, play
from shorthaul.cli.console import make_console
from shorthaul.cli.doctor import examine
from shorthaul.cli.findings import describe_sections, is_working
from shorthaul.meter import meter
from shorthaul.settings import settings
from shorthaul.units import format_bytes, format_seconds

STORED_BYTES = 64 * 2**20
QUICK_STORED_BYTES = 8 * 2**20


def show_machine(stage: Stage) -> Outcome:
    """The short form of `shorthaul doctor`: what is needed, and whatever is not as it should be."""
    sections = examine(is_quick=True, say=stage.say)
    return Outcome(
        ("", "what", "finding"),
        tuple(
            (each.status, each.name, each.value)
            for section in sections
            for each in section.findings
            if section.title in ("Kernels", "Storage") or each.status in ("warning", "broken")
        ),
        {"findings": describe_sections(sections)},
        holds=is_working(sections),
    )


def show_kernel(stage: Stage) -> Outcome:
    """Compile a kernel, or find it compiled, run it and compare it with PyTorch."""
    from shorthaul.cli.trials.sample_kernel import run_sample
    from shorthaul.jit import can_use_kernels

    if not can_use_kernels("the demo's kernel"):
        rows = (("kernel", "not run: plain PyTorch is used here, `shorthaul doctor` says why"),)
        return Outcome(("what", "result"), rows, {"is_equal": None}, holds=True)
    stage.say("compiling and running a kernel")
    run = run_sample(elements=1_000_000)
    entry = run.kernel.entry
    return Outcome(
        ("what", "result"),
        (
            ("kernel", f"{run.kernel.name}: out = 3 x + y"),
            ("source", str(entry.directory / "kernel.cpp")),
            ("compiled", f"in {entry.compile_seconds:.2f} s, once; then it is found in the cache"),
            (
                "result",
                f"{'equal to' if run.is_equal else 'NOT EQUAL to'} PyTorch's, "
                f"{run.elements:,} numbers",
            ),
        ),
        {
            "kernel": run.kernel.name,
            "compile_seconds": entry.compile_seconds,
            "is_equal": run.is_equal,
        },
        holds=run.is_equal,
    )


def show_storage(stage: Stage) -> Outcome:
    """Write random bytes through the storage engine, read them back, and compare."""
    from shorthaul.cli.trials.disk import make_round_trip
    from shorthaul.storage import open_engine, open_file

    total_bytes = QUICK_STORED_BYTES if stage.is_quick else STORED_BYTES
    with open_engine() as engine, open_file(settings.scratch_directory, "scratch") as file:
        trip = make_round_trip(engine, file, total_bytes, stage.say)
        way = "past the page cache" if file.is_direct else "through the page cache"
        return Outcome(
            ("what", "result"),
            (
                ("engine", f"{engine.name}, {way}, in {settings.scratch_directory}"),
                ("written", _describe_transfer(total_bytes, trip.write_bytes_per_second)),
                ("read back", _describe_transfer(total_bytes, trip.read_bytes_per_second)),
                ("bytes", "equal" if trip.is_equal else "NOT EQUAL"),
            ),
            {"engine": engine.name, "is_direct": file.is_direct, **dataclasses.asdict(trip)},
            holds=trip.is_equal,
        )


def show_offload(stage: Stage) -> Outcome:
    """A small GPT, its activations in memory and on disk."""
    from shorthaul.cli.acts import offload

    return offload.show_offload(stage)


def show_conv(stage: Stage) -> Outcome:
    """A small CNN with PyTorch's convolutions and with ours; not without the digits' package."""
    from shorthaul.cli.acts import conv
    from shorthaul.errors import MissingExtraError

    try:
        return conv.show_conv(stage)
    except MissingExtraError as error:
        return Outcome(("what", "result"), (("not shown", str(error)),), {}, holds=True)


def show_tensors(stage: Stage) -> Outcome:
    """GraphSAGE with its features in memory and on disk."""
    from shorthaul.cli.acts import tensors

    return tensors.show_tensors(stage)


def show_distributed(stage: Stage) -> Outcome:
    """Two ranks that load mini-batches, each from its half of the features and the other's."""
    from shorthaul.cli.acts import distributed

    return distributed.show_distributed(stage)


def show_relational(stage: Stage) -> Outcome:
    """R-GCN by plain PyTorch and by generated kernels."""
    from shorthaul.cli.acts import relational

    return relational.show_relational(stage)


def _describe_transfer(count_bytes: int, bytes_per_second: float) -> str:
    return f"{format_bytes(count_bytes)} at {bytes_per_second / 1e9:.2f} GB/s"


ACTS = (
    Act("machine", "What works on this machine", show_machine),
    Act("kernel", "A kernel, compiled and run", show_kernel),
    Act("storage", "Bytes to the disk and back", show_storage),
    Act("tensors", "GraphSAGE trained with features in memory, and on disk", show_tensors),
    Act("distributed", "Mini-batches of two ranks that own a half each", show_distributed),
    Act("relational", "R-GCN trained by plain PyTorch, and compiled", show_relational),
    Act("offload", "A GPT trained with activations in memory, and on disk", show_offload),
    Act("conv", "A CNN trained with PyTorch's convolutions, and in window order", show_conv),
)


@click.command()
@click.option("--quick", is_flag=True, help="Show less of everything.")
@click.option(
    "--report",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("report"),
    show_default=True,
    metavar="DIRECTORY",
    help="Where demo.md and demo.json are written.",
)
@click.pass_context
def demo(context: click.Context, quick: bool, directory: Path) -> None:
    """Show shorthaul at work here, and check what it does.

    Everything shown is also written to a report.

    Exit code 1 when something that was shown did not hold.
    """
    console = make_console()
    played: list[Played] = []
    with meter() as measured:
        for number, act in enumerate(ACTS, 1):
            console.print(Text(f"{number}. {act.title}", "bold"))
            played.append(play(act, Stage(quick)))
            console.print(render_outcome(played[-1]))
            console.print()
    console.print(measured.table())
    for path in write_report(directory, played, measured):
        console.print(f"written: {path}", soft_wrap=True)
    failed = [each.act.name for each in played if not each.outcome.holds]
    if failed:
        click.echo(f"Did not hold: {', '.join(failed)}.", err=True)
    context.exit(1 if failed else 0)


def render_outcome(played: Played) -> Table:
    """An act's table, with the time it took below."""
    table = Table(caption=f"took {format_seconds(played.seconds)}", caption_justify="left")
    for heading in played.outcome.headings:
        table.add_column(heading, overflow="fold")
    for row in played.outcome.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
