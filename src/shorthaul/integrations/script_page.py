"""The report of `shorthaul run` as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shorthaul.pages.charts import draw_areas, draw_bars, draw_lines
from shorthaul.pages.page import Cell, Page
from shorthaul.units import format_bytes, format_seconds

_MIB = 2**20
_WAITING = 0.05  # of the time: what is worth saying


def format_page(report: dict[str, Any], lines: str) -> str:
    """A page of what `ScriptReport` knows; `lines` is what the terminal was told."""
    page = Page(f"shorthaul run: {name_script(report['command'])}")
    first, *rest = lines.splitlines()
    page.say(first.removeprefix("shorthaul run: "))
    page.show_code("\n".join(each.strip() for each in rest))
    _show_memory(page, report)
    _show_steps(page, report)
    _show_journeys(page, report["meter"]["moved"])
    _show_layers(page, report["models"])
    page.head("What to try next")
    for each in suggest(report):
        page.say(each)
    return page.finish()


def name_script(command: list[str]) -> str:
    """What the words after Python run: a script by its name, a module, or what was typed.

    >>> name_script(["work/train.py", "--epochs", "3"]), name_script(["-m", "my.training", "-v"])
    ('train.py', '-m my.training')
    """
    match command:
        case ["-m", module, *_]:
            return f"-m {module}"
        case ["-", *_]:
            return "standard input"
        case [script, *_]:
            return Path(script).name
    return "a script"


def _show_memory(page: Page, report: dict[str, Any]) -> None:
    page.head("Memory over time")
    if report["resident"]:
        seconds, sizes = zip(*report["resident"], strict=True)
        amounts = [size / _MIB for size in sizes]
        title = f"Resident memory of the process: at most {max(amounts):,.0f} MiB where it was looked at"
        page.say(title + ".", is_quiet=True)
        page.show_chart(draw_lines({"resident": (seconds, amounts)}, unit="MiB", title=title))
    held = report["held"]
    if held is None:
        page.say("No step was watched: there were fewer than three, or the model is compiled.")
        return
    modules = {name: [size / _MIB for size in sizes] for name, sizes in held["modules"].items()}
    title = "Tensors of one step, by the module that made them"
    page.say(title + ".", is_quiet=True)
    page.show_chart(draw_areas(held["seconds"], modules, unit="MiB", title=title))
    rows = [[Cell(name), _bytes(max(sizes))] for name, sizes in held["modules"].items()]
    page.show_table("Peak by module", ("module", "peak of its tensors"), rows)


def _show_steps(page: Page, report: dict[str, Any]) -> None:
    times = report["step_seconds"]
    if not times:
        return
    page.head("Time of a step")
    middle = sorted(times)[len(times) // 2]
    title = f"Time from step to step: median {format_seconds(middle)}, {len(times):,} steps"
    page.say(title + ".", is_quiet=True)
    numbers = list(range(2, len(times) + 2))
    page.show_chart(
        draw_lines({"step": (numbers, times)}, unit="seconds", title=title, across="step")
    )


def _show_journeys(page: Page, moved: list[dict[str, Any]]) -> None:
    page.head("Bytes by journey")
    if not moved:
        page.say("Nothing was moved by shorthaul.")
        return
    bars = {
        f"{each['source']} to {each['target']}: {each['why']}": each["bytes"] / _MIB
        for each in moved
    }
    page.show_chart(draw_bars(bars, unit="MiB", title="Bytes moved, by journey"))
    rows = [
        [
            Cell(each["source"]),
            Cell(each["target"]),
            Cell(each["why"]),
            _bytes(each["bytes"]),
            Cell(f"{each['times']:,}", each["times"]),
        ]
        for each in moved
    ]
    page.show_table("Journeys", ("from", "to", "why", "bytes", "times"), rows)


def _show_layers(page: Page, models: list[dict[str, Any]]) -> None:
    page.head("Choices by layer")
    rows = [
        [Cell(model["name"]), Cell(layer), Cell(verb), Cell(why)]
        for model in models
        for verb in ("changed", "left")
        for layer, why in model[verb].items()
    ]
    if rows:
        page.show_table("Layers", ("model", "layer", "done", "what, or why"), rows)
    else:
        page.say("No layer was asked to be changed.")


def suggest(report: dict[str, Any]) -> list[str]:
    """What could be tried, from what was seen."""
    asked, script = report["asked"], " ".join(report["command"])
    models = report["models"]
    is_trained = any(each["is_trained"] for each in models)
    found = []
    if not is_trained and not any(asked[name] for name in ("replaces_convs", "accelerates")):
        return ["No model was trained in this process: start the script that trains."]
    if report["offload"] is not None:
        waited = sum(report["meter"]["stall_seconds"].values())
        if waited > _WAITING * report["seconds"]:
            found.append(
                f"The process waited {format_seconds(waited)} for the disk: give more memory, or a "
                "faster directory with --offload."
            )
    elif is_trained:
        found.append(
            f"For less memory: shorthaul run --memory 8GiB {script}, with the memory that you have."
        )
    convolutions = sum(each["convolutions"] for each in models)
    if convolutions and not asked["replaces_convs"]:
        found.append(
            f"For the {convolutions:,} convolutions, on a CPU: --replace-convs keeps whatever is "
            "faster, by layer."
        )
    graph_layers = sum(each["graph_layers"] for each in models)
    if graph_layers and not asked["accelerates"]:
        found.append(f"For the {graph_layers:,} layers of PyG and DGL: --accelerate.")
    if not is_trained:
        return found or ["Nothing else: no model was trained in this process."]
    found.append(f"Where time and memory go, and what would help: shorthaul advise {script}.")
    return found


def _bytes(size: int) -> Cell:
    return Cell(format_bytes(size), size)
