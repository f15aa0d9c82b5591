"""Diagrams of the pages, drawn while the site is built, so that readers need no script and no network.

mkdocs calls `on_page_markdown` (see `hooks` in mkdocs.yml). A diagram with a mistake fails the build.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
# Mermaid's ink becomes that of the page, and its paper none: one drawing for light and dark.
ACTORS = "text.actor&gt;tspan{fill:"  # the names in boxes of a sequence
COLORS = {
    "#333333": "currentColor",
    "#333": "currentColor",
    "#ECECFF": "none",
    f"{ACTORS}black": f"{ACTORS}currentColor",
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with a drawing in the place of each diagram's text."""
    numbers = itertools.count(1)
    return FENCE.sub(lambda found: draw(found[1], f"diagram-{next(numbers)}"), markdown)


def draw(text: str, name: str) -> str:
    """A diagram as one line of HTML; `name` keeps its styles apart from those of others on the page."""
    import mermaidx

    svg = " ".join(mermaidx.render(text).svg().split()).replace("my-svg", name)
    for color, instead in COLORS.items():
        svg = svg.replace(color, instead)
    # It shrinks with the page as long as its words can be read; on narrower pages it scrolls.
    width = float(re.findall(r'viewBox="\S+ \S+ (\S+) ', svg)[0])
    svg = svg.replace('style="', f'style="min-width: {0.6 * width:.0f}px; ', 1)
    return f'<div style="overflow-x: auto">{svg}</div>'
