"""`shorthaul claims`: what the papers claim, what was measured here, and whether it follows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from shorthaul.cli.bench import find_checkout


@click.command()
@click.argument("names", nargs=-1)
@click.option("--run", "is_run", is_flag=True, help="Measure them again first, into the ledger.")
@click.pass_context
def claims(context: click.Context, names: tuple[str, ...], is_run: bool) -> None:
    """Compare the claims of four papers with the ledger."""
    checkout = find_checkout(Path.cwd())
    if checkout is None:
        raise click.ClickException(
            f"{Path.cwd()} is not inside a checkout of shorthaul: the ledger is not installed with "
            "the package.\n  Clone the repository and run `shorthaul claims` there."
        )
    command = (
        sys.executable,
        "-m",
        "benchmarks.rendering.claims",
        *names,
        *(("--run",) if is_run else ()),
    )
    context.exit(subprocess.run(command, cwd=checkout, check=False).returncode)
