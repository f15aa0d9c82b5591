"""`shorthaul doctor`: what works on this machine, how fast, and what to install."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import click

from shorthaul import __version__
from shorthaul.cli.console import activity, json_option, make_console, print_json
from shorthaul.cli.findings import (
    Probe,
    Section,
    collect_sections,
    describe_sections,
    is_working,
    render_sections,
)
from shorthaul.cli.probes import PROBES
from shorthaul.settings import settings

NO_GPU = "The kernels' numbers are right in Triton's interpreter. No GPU was tried: none is here."


@click.command()
@click.option("--gpu", "is_gpu", is_flag=True, help="Try every kernel and path on the GPU instead.")
@click.option("--quick", is_flag=True, help="Skip the measurements, which take some seconds.")
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    help="Check this directory instead of SHORTHAUL_SCRATCH.",
)
@json_option
@click.pass_context
def doctor(
    context: click.Context, is_gpu: bool, quick: bool, scratch: Path | None, as_json: bool
) -> None:
    """Show what works here, how fast, and what to install.

    Exit code 0: kernels and storage work, possibly by a second-best way. 1: something is broken.
    """
    with (
        settings.override(scratch_directory=scratch) if scratch else contextlib.nullcontext(),
        activity("looking at this machine") as say,
    ):
        sections = examine(is_quick=quick, is_gpu=is_gpu, say=say)
    if as_json:
        print_json(
            {
                "shorthaul": __version__,
                "works": is_working(sections),
                "findings": describe_sections(sections),
            }
        )
    else:
        console = make_console()
        console.print(render_sections(sections))
        console.print(summarize(sections, is_gpu=is_gpu))
    context.exit(0 if is_working(sections) else 1)


def examine(
    *, is_quick: bool, say: Callable[[str], None], is_gpu: bool = False
) -> tuple[Section, ...]:
    """Run the probes; `say` hears which one is at work."""
    probes: tuple[Probe, ...] = PROBES
    if is_gpu:  # they need a torch that can be imported, which the others find out
        from shorthaul.cli.probes.gpu import GPU_PROBES

        probes = GPU_PROBES
    chosen = [each for each in probes if not (is_quick and each.is_measurement)]
    return collect_sections(chosen, lambda name: say(f"looking at: {name}"))


def summarize(sections: tuple[Section, ...], *, is_gpu: bool = False) -> str:
    """The last line: whether shorthaul can do its work here, or on the GPU, if there was one."""
    findings = [each for section in sections for each in section.findings]
    broken = [each.name for each in findings if each.status == "broken"]
    if broken:
        return f"Something essential is broken: {', '.join(broken)}."
    warnings = sum(each.status == "warning" for each in findings)
    praise = "Kernels and storage work here."
    if is_gpu:
        was_there = any(each.name.startswith("cuda:") for each in findings)
        praise = "The GPU works here." if was_there else NO_GPU
    return praise + (f" Warnings: {warnings}." if warnings else "")
