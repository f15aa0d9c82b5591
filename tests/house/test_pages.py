"""Links between pages lead somewhere."""

import ast
import builtins
import re
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def find_dead_links(pages: Sequence[Path]) -> list[str]:
    """Links to files that are not there; what lies on other machines is not looked at."""
    problems = []
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            name = target.partition("#")[0]
            if name and "://" not in name and not (page.parent / name).exists():
                problems.append(f"{page.name}: {target}")
    return problems


def test_links_lead_somewhere() -> None:
    pages = [*(ROOT / name for name in PAGES), *(ROOT / "docs").rglob("*.md")]
    assert find_dead_links(pages) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "[one](page.md#part) [two](gone.md) [three](https://example.org/x) [four](#part)\n"
        "```\n[five](code.md)\n```\n"
    )
    assert find_dead_links([page]) == ["page.md: gone.md"]


def find_unknown_names(program: str) -> set[str]:
    """Names that a program reads and never makes: what it would need from the page around it."""
    made, read = {*vars(builtins), "__file__", "__name__"}, set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            made |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            made.add(node.name)
    return read - made


def test_programs_on_pages_need_nothing_from_around_them() -> None:
    problems = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if page.name in ("cli.md", "distributed.md"):  # pieces of the demo, and of ranks
            continue
        for text in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
            problems += [f"{page.name}: {each}" for each in sorted(find_unknown_names(text))]
    assert problems == [], "begin a program with what it needs; tests/examples runs each alone"


def test_a_name_from_around_is_found() -> None:
    text = "import a.b as c\nfor x in c.d(y):\n    def f(z): return z + x\nprint(f(model))\n"
    assert find_unknown_names(text) == {"y", "model"}
