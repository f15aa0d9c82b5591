"""`shorthaul report`: what a run wrote down as JSON, in the terminal or as a page."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shorthaul.pages.charts import require_charts

if TYPE_CHECKING:
    from shorthaul.integrations.script_report import ScriptReport


@click.command()
@click.argument("run", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the page of the run to this file.",
)
def report(run: Path, page: Path | None) -> None:
    """Show the report of a run again, and what to try next.

    RUN is a file that `shorthaul run --report RUN.json` wrote.
    """
    from shorthaul.integrations.script_page import suggest

    if page is not None:
        if not page.parent.is_dir():
            raise click.BadParameter(f"there is no directory {page.parent}.", param_hint="--html")
        require_charts()
    found = _read(run)
    click.echo(found.describe())
    for each in suggest(dataclasses.asdict(found)):
        click.echo(f"  next: {each}")
    if page is not None:
        found.write_page(page)
        click.echo(f"\nThe page: {page}")


def _read(path: Path) -> ScriptReport:
    from shorthaul.integrations.script_report import ScriptReport

    wanted = {each.name for each in dataclasses.fields(ScriptReport)}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.ClickException(
            f"{path} is no JSON: {error}.\n  Write one by `shorthaul run --report run.json script.py`."
        ) from error
    missing = wanted - set(values) if isinstance(values, dict) else wanted
    if missing:
        raise click.ClickException(
            f"{path} is JSON, but no report of a run by this version of shorthaul: it lacks "
            f"{', '.join(sorted(missing))}.\n  Write one by `shorthaul run --report run.json script.py`."
        )
    return ScriptReport(**{name: values[name] for name in wanted})
