"""One HTML file that needs nothing else: headings, words, charts and tables that can be sorted."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #c8c8c8; --quiet: #595959; --band: #f3f4f6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #15171a; --line: #444a52; --quiet: #a8adb5; --band: #1f2328; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.6rem; margin: 0.5rem 0; } h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; }
p { margin: 0.5rem 0; } .quiet { color: var(--quiet); }
.wide { overflow-x: auto; }
svg { width: 100%; min-width: 32rem; height: auto; color: var(--ink); font-family: inherit; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: break-word; min-width: 4.5rem; }
tr:nth-child(even) td { background: var(--band); }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid; outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " \\2191"; } th[aria-sort=descending] button::after { content: " \\2193"; }
td.number, th.number { text-align: right; white-space: nowrap; }
pre { background: var(--band); padding: 0.6rem; overflow-x: auto; margin: 0.3rem 0; }
"""

_SCRIPT = """
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement, row = heading.parentElement;
    const body = heading.closest("table").tBodies[0], at = heading.cellIndex;
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of row.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (line) => line.cells[at].dataset.value ?? line.cells[at].textContent;
    const isNumber = heading.classList.contains("number");
    const lines = [...body.rows].sort((a, b) => isNumber
      ? Number(value(a)) - Number(value(b)) : value(a).localeCompare(value(b)));
    body.append(...(up ? lines : lines.reverse()));
  });
}
"""


@dataclass(frozen=True)
class Cell:
    """What is shown, and what it is sorted by where that is a number."""

    text: str
    value: float | None = None


@dataclass
class Page:
    """What has been put on a page so far."""

    title: str
    _parts: list[str] = field(default_factory=list)

    def head(self, text: str) -> None:
        """A heading."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def say(self, text: str, *, is_quiet: bool = False) -> None:
        """A paragraph."""
        quiet = ' class="quiet"' if is_quiet else ""
        self._parts.append(f"<p{quiet}>{html.escape(text)}</p>")

    def show_code(self, text: str) -> None:
        """Lines to copy."""
        self._parts.append(f'<pre tabindex="0"><code>{html.escape(text)}</code></pre>')

    def show_chart(self, svg: str) -> None:
        """A chart that `charts` drew."""
        self._parts.append(f'<div class="wide" tabindex="0" role="group">{svg}</div>')

    def show_table(
        self, caption: str, headings: Sequence[str], rows: Sequence[Sequence[Cell]]
    ) -> None:
        """A table; a click on a heading sorts it. A column is of numbers if every cell has a value."""
        numbers = [all(row[at].value is not None for row in rows) for at in range(len(headings))]
        kinds = [' class="number"' if each else "" for each in numbers]
        head = "".join(
            f'<th scope="col"{kind}><button type="button">{html.escape(each)}</button></th>'
            for each, kind in zip(headings, kinds, strict=True)
        )
        body = "".join(
            f"<tr>{''.join(_format(cell, kind) for cell, kind in zip(row, kinds, strict=True))}</tr>"
            for row in rows
        )
        self._parts.append(
            f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(caption)}"><table>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def finish(self) -> str:
        """The whole file."""
        title = html.escape(self.title)
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<link rel="icon" href="data:,">\n'
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
            f"<h1>{title}</h1>\n"
            + "\n".join(self._parts)
            + f"\n</main>\n<script>{_SCRIPT}</script>\n"
            "</body>\n</html>\n"
        )


def _format(cell: Cell, kind: str) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    return f"<td{kind}{value}>{html.escape(cell.text)}</td>"
