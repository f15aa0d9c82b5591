"""The pages build as a site without a warning, and every page is in its navigation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from setup.diagrams import FENCE, draw

ROOT = Path(__file__).parents[2]


def build(folder: Path, configuration: Path) -> subprocess.CompletedProcess[str]:
    command = ("-m", "mkdocs", "build", "--strict", "--config-file", str(configuration))
    return subprocess.run(
        (sys.executable, *command, "--site-dir", str(folder)),
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = build(tmp_path, ROOT / "mkdocs.yml")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    names = [path.with_suffix(".html") for path in pages if path != Path("README.md")]
    assert [name for name in names if not (tmp_path / name).exists()] == []
    changes = (tmp_path / "changes.html").read_text()
    assert "Keep a Changelog" in changes
    assert 'href="gpu.html"' in changes
    for page in ("how-it-flows", "distributed"):
        drawn, text = (
            (tmp_path / f"{page}.html").read_text(),
            (ROOT / "docs" / f"{page}.md").read_text(),
        )
        assert drawn.count('<svg id="diagram-') == len(FENCE.findall(text)) > 0
        assert 'class="mermaid"' not in drawn
    reference = tmp_path / "reference"
    for page, shown in (
        ("shorthaul.html", "sh.replace_convs"),
        ("offload.html", "sh.offload.wrap"),
        ("conv.html", "tune"),
        ("integrations.html", "sh.integrations.ShorthaulCallback"),
    ):
        assert shown in (reference / page).read_text()


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# One\n\n[two](two.md)\n")
    text = (ROOT / "mkdocs.yml").read_text().partition("nav:\n  - ")[0]
    text = re.sub(r"^hooks: .*$", "", text, flags=re.M)
    configuration = tmp_path / "mkdocs.yml"
    configuration.write_text(text.replace("docs_dir: docs", "docs_dir: pages"))
    done = build(tmp_path / "site", configuration)
    assert done.returncode != 0
    assert "two.md" in done.stderr


def test_a_wrong_diagram_is_found() -> None:
    assert '<svg id="one" width="100%"' in draw("flowchart LR\n    a --> b\n", "one")
    assert "actor&gt;tspan{fill:currentColor" in draw("sequenceDiagram\n    A->>B: rows\n", "two")
    with pytest.raises(RuntimeError, match="Parse error"):
        draw("sequenceDiagram\n    Note over A: one; two, three\n", "two")
