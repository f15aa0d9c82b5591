"""Links between pages lead somewhere."""

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
