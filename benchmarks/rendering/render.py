"""The tables of README.md and docs/*.md, rendered from the ledger and from the code.

A page holds a table between two markers::

    <!-- table: meter -->
    <!-- end table -->

and `make results` fills it: the newest run of each machine that answered the question `meter`, with
every row that was measured. `<!-- table: meter-briefly -->` is a line per case of the newest run: the
fastest peer, and ours; `<!-- table: meter-newest -->` is all of that run. `python -m benchmarks.rendering.render --check` changes nothing and fails where a
page says something else than its source; the house tests do the same.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ledger
from benchmarks.measuring.record_machine_code import render_machine_code
from benchmarks.rendering.bars import draw_layer_shares, draw_steps
from benchmarks.rendering.claims import render_claims, render_claims_briefly
from benchmarks.rendering.curve import draw_curve, draw_curves
from benchmarks.rendering.heat_map import draw_heat_map, draw_memory
from benchmarks.rendering.machines_on_paper import render_machines_on_paper
from benchmarks.rendering.reference import render_errors, render_pages, render_settings
from benchmarks.rendering.rooflines import (
    render_convolution_rooflines,
    render_relational_rooflines,
)
from benchmarks.rendering.stages import PICTURE as STAGES_PICTURE
from benchmarks.rendering.stages import draw_stages, render_stages
from benchmarks.rendering.style import digest_sources, read_signature, sign
from benchmarks.rendering.transactions import render_transactions, render_transfer_model
from shorthaul.units import format_bytes, format_seconds

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?P<begin><!-- table: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end table -->)", re.DOTALL
)
_MARKER = re.compile(r"<!-- (?:table: [\w-]+|end table) -->")


# Pictures, by their file: the question whose newest run is drawn, and how.
PICTURES: dict[str, tuple[str, Callable[[Sequence[Mapping[str, Any]]], str]]] = {
    "docs/offload_curve.svg": (
        "offload_batches",
        partial(
            draw_curve,
            panels={
                "peak_live_bytes": "Peak of live activations",
                "peak_growth_bytes": "Peak of resident memory, over before the step",
            },
        ),
    ),
    "docs/offload_disks.svg": (
        "offload_curves",
        partial(
            draw_curves,
            figure="peak_live_bytes",
            panels={
                f"disk of {rate} MB/s": f"Peak of live activations, {rate} MB/s"
                for rate in (100, 300, 1000)
            },
        ),
    ),
    "docs/conv_layers.svg": (
        "conv_layers",
        partial(
            draw_layer_shares,
            case_ends="channels_last batch 1 threads 1",
            title="Share of the FMA peak: float32, channels last, one image, one thread",
        ),
    ),
    "docs/conv_ablation.svg": (
        "conv_ablation",
        partial(draw_steps, title="Share of the FMA peak, geometric mean of the twelve layers"),
    ),
    "docs/relational_heat_map.svg": ("relational", draw_heat_map),
    "docs/relational_large_heat_map.svg": ("relational_large", draw_heat_map),
    "docs/relational_memory.svg": ("relational_memory", draw_memory),
}


BRIEFLY, NEWEST = "-briefly", "-newest"
NOT_MEASURED = "*Not measured yet.*"  # a question that has a benchmark and no answer


class RenderError(ValueError):
    """A page asks for a table that there is not, or its markers do not pair."""


def fill_page(text: str, tables: Mapping[str, Callable[[], str]], where: str) -> str:
    """`text` with every table between its markers made anew."""
    if len(_MARKER.findall(text)) != 2 * len(_BLOCK.findall(text)):
        raise RenderError(f"{where}: each `<!-- table: name -->` needs one `<!-- end table -->`")

    def fill(block: re.Match[str]) -> str:
        if block["name"] not in tables:
            known = ", ".join(sorted(tables))
            raise RenderError(f"{where}: there is no table `{block['name']}`; there are {known}")
        return f"{block['begin']}\n{tables[block['name']]()}\n\n{block['end']}"

    return _BLOCK.sub(fill, text)


def list_tables(root: Path, directory: Path) -> dict[str, Callable[[], str]]:
    """Every table that a page may ask for: one per question of the ledger, and the references."""

    def table_of(question: str) -> Callable[[], str]:
        return lambda: render_question(ledger.read_runs(question, directory))

    def brief_table_of(question: str) -> Callable[[], str]:
        return lambda: render_briefly(ledger.read_runs(question, directory)[-1])

    def newest_table_of(question: str) -> Callable[[], str]:
        return lambda: render_run(ledger.read_runs(question, directory)[-1])

    files = (root / "benchmarks" / "questions").glob("**/bench_*.py")
    names = [path.stem.removeprefix("bench_") for path in files]
    ends = {"": table_of, BRIEFLY: brief_table_of, NEWEST: newest_table_of}
    asked = {name + end: lambda: NOT_MEASURED for name in names for end in ends}
    questions = ledger.list_questions(directory)
    answered = {
        question + end: make(question) for question in questions for end, make in ends.items()
    }
    return (
        asked
        | answered
        | {
            "questions": lambda: render_questions(directory),
            "pages": lambda: render_pages(root / "docs"),
            "settings": render_settings,
            "errors": render_errors,
            "claims": partial(render_claims, directory),
            "claims-in-brief": partial(render_claims_briefly, directory),
            "stages": render_stages,
            "machine-code": render_machine_code,
            "transactions": render_transactions,
            "transfer-model": render_transfer_model,
            "machines-on-paper": partial(render_machines_on_paper, directory),
            "relational-rooflines": render_relational_rooflines,
            "convolution-rooflines": render_convolution_rooflines,
        }
    )


def list_pages(root: Path = ROOT) -> list[Path]:
    """The pages that may hold tables."""
    return [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]


def find_stale_pages(root: Path = ROOT, directory: Path = ledger.DIRECTORY) -> dict[Path, str]:
    """Each page and picture that differs from its sources, with the text it should have."""
    tables = list_tables(root, directory)
    stale = {}
    for page in list_pages(root):
        text = page.read_text()
        filled = fill_page(text, tables, page.name)
        if filled != text:
            stale[page] = filled
    return stale | find_stale_pictures(root, directory)


def find_stale_pictures(root: Path, directory: Path) -> dict[Path, str]:
    """Each picture that differs from what the ledger says; none where its question was not asked."""
    stale: dict[Path, str] = {}
    for name, (question, draw) in PICTURES.items():
        if question in ledger.list_questions(directory):
            rows = ledger.read_runs(question, directory)[-1]["rows"]
            digest = digest_sources(rows, draw)
            path = root / name
            if not path.exists() or read_signature(path.read_text()) != digest:
                stale[path] = sign(draw(rows), digest)
    pages = [page for page in list_pages(root) if page.exists()]
    if any(Path(STAGES_PICTURE).name in page.read_text() for page in pages):
        path, drawn = root / STAGES_PICTURE, draw_stages()
        if not path.exists() or path.read_text() != drawn:
            stale[path] = drawn
    return stale


def render_question(runs: Iterable[ledger.Run]) -> str:
    """The newest run of each machine, every row."""
    return "\n\n".join(map(render_run, ledger.choose_latest(runs)))


def render_run(run: ledger.Run) -> str:
    """One run as a Markdown table, with a line on where and how it was measured."""
    measured = [row for row in run["rows"] if row["rounds"]]
    if not measured:
        return render_counts(run)
    names = list(dict.fromkeys(name for row in measured for name in row["figures"]))
    headings = ["case", "arm", "median", "10 to 90 %", "CPU", "speed"]
    lines = [[*headings, *(_title(name) for name in names)]]
    before = None
    for row in run["rows"]:
        wall = row["wall_seconds"]
        times = [
            format_seconds(wall["median"]),
            f"{format_seconds(wall['low'])} to {format_seconds(wall['high'])}",
            format_seconds(row["cpu_seconds"]["median"]),
            _speed(row),
            *(_figure(name, row["figures"].get(name)) for name in names),
        ]
        if not row["rounds"]:
            times = ["-", "-", "-", describe_failure(row), *("" for _ in names)]
        lines.append([row["case"] if row["case"] != before else "", row["arm"], *times])
        before = row["case"]
    return f"{_markdown(lines, left=2)}\n\n{_caption(run)}"


def render_counts(run: ledger.Run) -> str:
    """A run that counted and timed nothing."""
    names = list(dict.fromkeys(name for row in run["rows"] for name in row["figures"]))
    lines = [["case", "arm", *(_title(name) for name in names)]]
    before = None
    for row in run["rows"]:
        figures = [_figure(name, row["figures"].get(name)) for name in names]
        lines.append([row["case"] if row["case"] != before else "", row["arm"], *figures])
        before = row["case"]
    return f"{_markdown(lines, left=2)}\n\n*{'; '.join(_list_facts(run, 'counted, not timed'))}.*"


def render_briefly(run: ledger.Run) -> str:
    """A run with a line per case and arm of ours: the fastest other arm, ours, and the ratio of medians."""
    lines = [["case", "fastest other", "", "ours", "", "speed"]]
    for case in dict.fromkeys(row["case"] for row in run["rows"]):
        rows = [row for row in run["rows"] if row["case"] == case]
        others = [row for row in rows if not _is_ours(row)]
        best = ledger.find_fastest(others)
        if best is None:
            told = ["; ".join(f"{row['arm']} {describe_failure(row)}" for row in others) or "-", ""]
        else:
            told = [best["arm"], format_seconds(best["wall_seconds"]["median"])]
        for number, row in enumerate(filter(_is_ours, rows)):
            ours = row["wall_seconds"]["median"]
            speed = "" if best is None else f"{best['wall_seconds']['median'] / ours:.3g}x"
            first = ["", "", ""] if number else [case, *told]
            lines.append([*first, row["arm"], format_seconds(ours), speed])
    return f"{_markdown(lines, left=2)}\n\n{_caption(run, 'the ratio of medians, the fastest other to ours')}"


def _is_ours(row: Mapping[str, Any]) -> bool:
    return str(row["arm"]).startswith("shorthaul")


def render_questions(directory: Path) -> str:
    """Every question that was asked, and when it was last answered."""
    lines = [["table", "question", "last answer"]]
    for question in ledger.list_questions(directory):
        last = ledger.read_runs(question, directory)[-1]
        lines.append([f"`{question}`", last["asks"], last["date"][:10]])
    return _markdown(lines, left=3)


def describe_failure(row: Mapping[str, Any]) -> str:
    """Why an arm has no time."""
    figures = row["figures"]
    if "needs_bytes" in figures:
        return f"needs {format_bytes(figures['needs_bytes'])}"
    if "killed_at_bytes" in figures:
        return f"ended at {format_bytes(figures['killed_at_bytes'])} of memory"
    if "over_seconds" in figures:
        return f"over {format_seconds(figures['over_seconds'])}"
    if "not_installed" in figures:
        return "not installed"
    return "differs" if "unequal" in figures else "failed"


def _speed(row: Mapping[str, Any]) -> str:
    if row["arm"] == row["baseline"]:
        return "1 (baseline)"
    speed = row["speedup"]
    return f"{speed['median']:.3g}x ({speed['low']:.3g} to {speed['high']:.3g})"


def _title(figure: str) -> str:
    """The heading of a figure: its name without the unit that its values show."""
    for unit in ("_bytes", "_seconds", "_share"):
        figure = figure.removesuffix(unit)
    return figure.replace("_", " ")


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_seconds"):
        return format_seconds(value)
    if name.endswith("_share"):
        return f"{value:.2%}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _caption(run: ledger.Run, speed: str = "against the baseline of the case") -> str:
    most_rounds = max(row["rounds"] for row in run["rows"])
    load = run["machine"].get("load_before", "?")
    facts = _list_facts(run, f"{most_rounds} interleaved rounds, load {load} before")
    return f"*{'; '.join(facts)}. Speed is {speed}: above 1 is faster.*"


def _list_facts(run: ledger.Run, how: str) -> list[str]:
    """Where and how a run was measured."""
    machine = run["machine"]
    changed = " with changes" if run["is_changed"] else ""
    generation = [machine["family"]] if machine.get("family") else []
    generation.append(machine.get("vectors", "avx2"))
    return [
        f"{machine['cpu']} ({', '.join(generation)}), {machine['cores']} cores, "
        f"{format_bytes(machine['memory_bytes'])}",
        *_list_gpu_facts(machine),
        f"torch {machine['torch']} with {machine.get('torch_threads', '?')} threads",
        how,
        f"allocator: {machine['allocator']}",
        *(f"{name.replace('_', ' ')}: {value}" for name, value in run["conditions"].items()),
        f"{run['date'][:10]}, commit {run['commit'][:8]}{changed}",
    ]


def _list_gpu_facts(machine: Mapping[str, Any]) -> list[str]:
    """The GPU of a machine that has one, and what drives it."""
    if "gpu" not in machine:
        return []
    return [
        f"{machine['gpu']} (sm_{machine['gpu_capability'].replace('.', '')}, "
        f"{format_bytes(machine['gpu_memory_bytes'])}), driver {machine['gpu_driver']}, "
        f"CUDA {machine['cuda']}, cuDNN {machine['cudnn']}, Triton {machine['triton']}"
    ]


def _markdown(lines: Sequence[Sequence[str]], left: int) -> str:
    """A Markdown table; the columns after the first `left` hold numbers."""
    heading, *rows = ([each.replace("|", "\\|") for each in line] for line in lines)
    rule = ["---" if column < left else "---:" for column in range(len(heading))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, rule, *rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill every page, or with `--check` say which pages are stale."""
    parser = argparse.ArgumentParser(description="Render the tables of README and docs.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail when stale")
    is_check = parser.parse_args(arguments).check
    stale = find_stale_pages()
    for page, text in stale.items():
        if not is_check:
            page.write_text(text)
        print(f"{'stale' if is_check else 'rendered'}: {page.relative_to(ROOT)}")
    if is_check and stale:
        print("Run `make results`.", file=sys.stderr)
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
