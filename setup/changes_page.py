"""The changelog as a page of the site: `CHANGELOG.md` lies in the repository's root, above the pages.

mkdocs calls `on_files` (see `hooks` in mkdocs.yml).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
PAGE = "changes.md"


def on_files(files: Any, config: Any) -> Any:
    """Add the changelog."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content=render_changes(CHANGELOG.read_text())))
    return files


def render_changes(text: str) -> str:
    """The changelog with links that start from the folder of pages, not from the repository's root."""
    return text.replace("](docs/", "](")
