"""The reference tables of the docs: settings and errors from the code, pages from the pages."""

from __future__ import annotations

import builtins
import inspect
import re
from pathlib import Path

from shorthaul import errors
from shorthaul.settings import Setting, Settings
from shorthaul.units import format_bytes, format_seconds


def render_settings() -> str:
    """Every setting with its variable, values, default and meaning."""
    lines = ["| setting | environment variable | values | default | meaning |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for each in Settings.all():
        cells = [f"`{each.name}`", f"`{each.environment}`", each.expected]
        cells += [show_default(each), each.meaning]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def show_default(setting: Setting[object]) -> str:
    """The default in words that hold on every machine."""
    if setting.shown_default:
        return setting.shown_default
    value = setting.default()
    if isinstance(value, int | float) and setting.name.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, int | float) and setting.name.endswith("_seconds"):
        return format_seconds(value)
    return f"`{value}`"


def list_errors() -> list[type[errors.ShorthaulError]]:
    """Every error class, in the order of their modules."""
    return [
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, errors.ShorthaulError)
    ]


def render_errors() -> str:
    """Every error with the builtins that also catch it, and when it is raised."""
    lines = ["| error | is also | when |", "| --- | --- | --- |"]
    for each in list_errors():
        parents = [base for base in each.__mro__[1:] if _is_worth_naming(base)]
        names = ", ".join(f"`{base.__name__}`" for base in parents)
        when = " ".join((inspect.getdoc(each) or "").partition("\n\n")[0].split())
        lines.append(f"| `{each.__name__}` | {names} | {when} |")
    return "\n".join(lines)


def _is_worth_naming(base: type) -> bool:
    is_builtin = vars(builtins).get(base.__name__) is base
    return is_builtin and base not in (Exception, BaseException, object)


def render_pages(directory: Path) -> str:
    """Every page of the docs with its first sentence."""
    lines = ["| page | content |", "| --- | --- |"]
    for path in sorted(directory.glob("*.md")):
        if path.name != "README.md":
            title, _, text = path.read_text().partition("\n")
            paragraph = " ".join(text.strip().partition("\n\n")[0].split())
            sentence = re.split(r"(?<=\.)\s", paragraph)[0]
            lines.append(f"| [{title.lstrip('# ')}]({path.name}) | {sentence} |")
    return "\n".join(lines)
