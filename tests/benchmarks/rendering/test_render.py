"""Tables show what the ledger says, the losing rows too, and stale pages are found."""

from pathlib import Path

import pytest

from benchmarks.ledger import append, verify_run
from benchmarks.measuring.answer import Answer
from benchmarks.rendering.render import (
    NOT_MEASURED,
    RenderError,
    fill_page,
    find_stale_pages,
    list_tables,
    render_briefly,
    render_question,
    render_questions,
    render_run,
)
from tests.benchmarks.runs import make_row, make_run

GOLDEN = """\
| case | arm | median | 10 to 90 % | CPU | speed | read | hit |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
| 10 rows | plain | 2.0 ms | 1.8 ms to 2.2 ms | 4.0 ms | 1 (baseline) | 80.0 KiB |  |
|  | shorthaul | 1.0 ms | 900.0 us to 1.1 ms | 2.0 ms | 2x (1.8 to 2.2) | 40.0 KiB | 12.50% |
| 1 row | plain | 100.0 us | 90.0 us to 110.0 us | 200.0 us | 1 (baseline) |  |  |
|  | shorthaul | 200.0 us | 180.0 us to 220.0 us | 400.0 us | 0.5x (0.45 to 0.55) |  |  |

*Abacus 9 (abacus), 4 cores, 8.0 GiB; torch 2.13.0 with 2 threads; 9 interleaved rounds, load 0.25 \
before; allocator: glibc, default settings; page cache: cold; 2025-01-02, commit 01234567. Speed is \
against the baseline of the case: above 1 is faster.*"""


def test_a_run_as_a_table_with_its_losing_row() -> None:
    assert render_run(make_run()) == GOLDEN


def test_uncommitted_code_is_told() -> None:
    assert "commit 01234567 with changes." in render_run(make_run(is_changed=True))


def test_figures_are_shown_in_their_units() -> None:
    row = make_row(
        "a|b", "plain", 1.0, rows_per_second=123456.7, wait_seconds=0.25, loss=0.12345, epochs=3
    )
    heading, _, line = render_run(make_run(rows=[row])).splitlines()[:3]
    assert heading.endswith("| rows per second | wait | loss | epochs |")
    assert line.endswith("| 123,457 | 250.0 ms | 0.123 | 3 |")
    assert line.startswith(r"| a\|b | plain |")


def test_each_machine_has_its_newest_table() -> None:
    old = make_run(date="2024-01-01")
    new = make_run(date="2025-01-01")
    other = make_run(machine=make_run()["machine"] | {"cpu": "Abacus 10"})
    text = render_question([old, other, new])
    assert text == f"{render_run(new)}\n\n{render_run(other)}"


def test_a_brief_table_is_of_the_newest_run(tmp_path: Path) -> None:
    machine = make_run()["machine"]
    append(make_run(), tmp_path)
    newest = make_run(machine=machine | {"vectors": "wider"}, date="2025-03-01")
    append(newest, tmp_path)
    tables = list_tables(tmp_path, tmp_path)
    assert tables["rows-briefly"]() == render_briefly(newest)
    assert tables["rows-newest"]() == render_run(newest)


def test_questions_are_listed_with_their_last_answer(tmp_path: Path) -> None:
    append(make_run("writes", date="2025-02-03T00:00:00", asks="How long?"), tmp_path)
    append(make_run("rows", asks="Old words?"), tmp_path)
    append(make_run("rows"), tmp_path)
    assert render_questions(tmp_path) == (
        "| table | question | last answer |\n"
        "| --- | --- | --- |\n"
        "| `rows` | How long do rows take? | 2025-01-02 |\n"
        "| `writes` | How long? | 2025-02-03 |"
    )


PAGE = "Before.\n<!-- table: a -->\nold\n<!-- end table -->\nBetween.\n<!-- table: b -->\n<!-- end table -->\n"
TABLES = {"a": lambda: "| A |", "b": lambda: r"| \1 |"}


def test_only_what_is_between_markers_is_replaced() -> None:
    filled = fill_page(PAGE, TABLES, "page.md")
    assert filled == (
        "Before.\n<!-- table: a -->\n\n| A |\n\n<!-- end table -->\n"
        "Between.\n<!-- table: b -->\n\n| \\1 |\n\n<!-- end table -->\n"
    )
    assert fill_page(filled, TABLES, "page.md") == filled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table: c -->\n<!-- end table -->", "there is no table `c`; there are a, b"),
        ("<!-- table: a -->\n", "needs one `<!-- end table -->`"),
        ("<!-- end table -->", "needs one `<!-- end table -->`"),
        ("<!-- table: a -->\n<!-- table: b -->\n<!-- end table -->", "needs one"),
    ],
)
def test_a_page_with_wrong_markers_is_refused(text: str, message: str) -> None:
    with pytest.raises(RenderError, match=r"^page\.md: ") as caught:
        fill_page(text, TABLES, "page.md")
    assert message in str(caught.value)


def test_stale_pages_are_found_and_filled(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page, plain = tmp_path / "docs" / "rows.md", tmp_path / "README.md"
    page.write_text("<!-- table: rows -->\n<!-- end table -->\n")
    plain.write_text("No tables.\n")
    append(make_run(), tmp_path / "ledger")
    stale = find_stale_pages(tmp_path, tmp_path / "ledger")
    assert stale == {page: f"<!-- table: rows -->\n\n{GOLDEN}\n\n<!-- end table -->\n"}
    page.write_text(stale[page])
    assert find_stale_pages(tmp_path, tmp_path / "ledger") == {}
    append(make_run(date="2026-01-01"), tmp_path / "ledger")
    assert list(find_stale_pages(tmp_path, tmp_path / "ledger")) == [page]


def test_references_are_tables_too(tmp_path: Path) -> None:
    tables = list_tables(tmp_path, tmp_path)
    assert {"questions", "pages", "settings", "errors"} <= tables.keys()


def test_an_arm_without_a_time_says_why() -> None:
    answer = Answer()
    answer.rows.append(make_row("10 rows", "plain", 1.0))
    answer.leave_out("10 rows", "large", "plain", needs_bytes=3 * 2**30)
    answer.leave_out("10 rows", "slow", "plain", over_seconds=100.0)
    answer.leave_out("10 rows", "hungry", "plain", killed_at_bytes=8 * 2**30)
    answer.leave_out("10 rows", "broken", "plain", failed=1)
    answer.leave_out("10 rows", "other", "plain", unequal=1)
    run = make_run(rows=answer.rows)
    verify_run(run, "run")
    assert render_run(run).splitlines()[3:8] == [
        "|  | large | - | - | - | needs 3.0 GiB |",
        "|  | slow | - | - | - | over 100.0 s |",
        "|  | hungry | - | - | - | ended at 8.0 GiB of memory |",
        "|  | broken | - | - | - | failed |",
        "|  | other | - | - | - | differs |",
    ]


def test_counts_have_no_times() -> None:
    answer = Answer()
    answer.count("2 ranks", "all", "all", remote_rows=2000, wire_bytes=2**20)
    answer.count("2 ranks", "some", "all", remote_rows=200, wire_bytes=2**10)
    run = make_run(rows=answer.rows)
    verify_run(run, "run")
    *table, _, caption = render_run(run).splitlines()
    assert table == [
        "| case | arm | remote rows | wire |",
        "| --- | --- | ---: | ---: |",
        "| 2 ranks | all | 2,000 | 1.0 MiB |",
        "|  | some | 200 | 1.0 KiB |",
    ]
    assert "counted, not timed" in caption
    assert "faster" not in caption


def test_briefly_a_case_is_its_fastest_peer_and_ours() -> None:
    answer = Answer()
    answer.rows += [make_row("10 rows", "plain", 0.004), make_row("10 rows", "other", 0.003)]
    answer.rows += [make_row("10 rows", "shorthaul", 0.001)]
    answer.rows += [make_row("10 rows", "shorthaul, threads", 0.006)]
    answer.leave_out("many rows", "plain", "plain", needs_bytes=3 * 2**30)
    answer.rows += [make_row("many rows", "shorthaul", 0.5)]
    assert render_briefly(make_run(rows=answer.rows)).splitlines()[:5] == [
        "| case | fastest other |  | ours |  | speed |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| 10 rows | other | 3.0 ms | shorthaul | 1.0 ms | 3x |",
        "|  |  |  | shorthaul, threads | 6.0 ms | 0.5x |",
        "| many rows | plain needs 3.0 GiB |  | shorthaul | 500.0 ms |  |",
    ]


def test_a_question_without_an_answer_says_so(tmp_path: Path) -> None:
    (tmp_path / "benchmarks" / "questions").mkdir(parents=True)
    (tmp_path / "benchmarks" / "questions" / "bench_rows.py").touch()
    assert list_tables(tmp_path, tmp_path / "ledger")["rows"]() == NOT_MEASURED
    append(make_run("rows"), tmp_path / "ledger")
    assert list_tables(tmp_path, tmp_path / "ledger")["rows"]() == render_run(make_run())
