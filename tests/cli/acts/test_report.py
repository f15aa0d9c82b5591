"""The demo's report: the same values as Markdown and as JSON."""

import json
import platform
import re
from importlib import metadata
from pathlib import Path

import shorthaul as sh
from shorthaul.cli.acts.report import format_page, write_report
from shorthaul.cli.acts.stage import Act, Outcome, Played, Stage
from shorthaul.meter import Meter, Tally


def show(stage: Stage) -> Outcome:
    raise AssertionError("reports show nothing themselves")


PLAYED = (
    Played(
        Act("train", "The same model twice", show),
        Outcome(("", "plain", "shorthaul"), (("loss", "1.5", "1.5|1.5"),), {"loss": 1.5}, True),
        0.25,
    ),
    Played(
        Act("fail", "What fails", show),
        Outcome(("what", "result"), (("failed", "twice\nover"),), {"error": "twice\nover"}, False),
        2.0,
    ),
)
MEASURED = Meter(moved={("disk", "memory", "rows"): Tally(4096, 2)}, _seconds=3.0)

GOLDEN = """\
# shorthaul demo

<versions>, 3.0 s in all.

## The same model twice

|  | plain | shorthaul |
| --- | --- | --- |
| loss | 1.5 | 1.5\\|1.5 |

Took 250.0 ms; held.

## What fails

| what | result |
| --- | --- |
| failed | twice over |

Took 2.0 s; **did not hold**.

## Bytes moved

| from | to | why | bytes | times |
| --- | --- | --- | --- | --- |
| disk | memory | rows | 4.0 KiB | 2 |
"""


def test_the_whole_page() -> None:
    page = format_page(PLAYED, MEASURED)
    versions = re.search(r"^shorthaul \S+, torch \S+, Python \d\S*(?=, )", page, re.M)
    assert versions is not None
    assert page.replace(versions[0], "<versions>") == GOLDEN


def test_both_files_are_written_into_a_new_directory(tmp_path: Path) -> None:
    page, data = write_report(tmp_path / "a" / "report", PLAYED, MEASURED)
    assert (page.name, data.name) == ("demo.md", "demo.json")
    assert page.read_text() == format_page(PLAYED, MEASURED)
    document = json.loads(data.read_text())
    assert document == {
        "shorthaul": sh.__version__,
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "holds": False,
        "acts": [
            {
                "name": "train",
                "title": "The same model twice",
                "holds": True,
                "seconds": 0.25,
                "figures": {"loss": 1.5},
            },
            {
                "name": "fail",
                "title": "What fails",
                "holds": False,
                "seconds": 2.0,
                "figures": {"error": "twice\nover"},
            },
        ],
        "meter": MEASURED.to_dict(),
    }
