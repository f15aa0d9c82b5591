"""The API reference of the site: a page for each package, made from its docstrings while the site is built.

mkdocs calls `on_files` (see `hooks` in mkdocs.yml). What a package lists in `__all__` is on its page.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from shorthaul.errors import MissingExtraError

# Package -> title and the name that users write.
PACKAGES = {
    "shorthaul": ("Everything at hand", "sh"),
    "shorthaul.tensors": ("Unified tensors", "sh.tensors"),
    "shorthaul.graphs": ("Graphs and sampling", "sh.graphs"),
    "shorthaul.relational": ("Relational layers", "sh.relational"),
    "shorthaul.offload": ("Activation offloading", "sh.offload"),
    "shorthaul.conv": ("Convolution", "sh.conv"),
    "shorthaul.distributed": ("Many machines", "sh.distributed"),
    "shorthaul.integrations": ("Integrations", "sh.integrations"),
    "shorthaul.datasets": ("Data sets", "sh.datasets"),
    "shorthaul.jit": ("Kernels", "sh.jit"),
    "shorthaul.storage": ("Storage", "shorthaul.storage"),
}
MOST_COLUMNS = 80
ENTRY = re.compile(r"^ {4}(\w[\w, ]*): (.*)$")


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each package."""
    from mkdocs.structure.files import File

    for package in PACKAGES:
        text = render_package(importlib.import_module(package))
        files.append(File.generated(config, page_of(package), content=text))
    return files


def page_of(package: str) -> str:
    """Where a package's page is, below the site's root."""
    return f"reference/{package.rpartition('.')[2]}.md"


def render_package(module: ModuleType) -> str:
    """The page of a package: every public name with its signature and docstring."""
    title, prefix = PACKAGES[module.__name__]
    parts = [f"# {title}: `{prefix}`", render_docstring(module)]
    for name, thing in public_things(module):
        if inspect.isclass(thing):
            parts += render_class(f"{prefix}.{name}", thing)
        elif callable(thing):
            parts += [f"## {prefix}.{name}", *render_call(name, thing)]
    return "\n\n".join(filter(None, parts)) + "\n"


def public_things(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a package lists, but for its own packages and what is not installed."""
    for name in module.__all__:
        try:
            thing = getattr(module, name)
        except MissingExtraError:
            continue
        if not inspect.ismodule(thing) and name != "__version__":
            yield name, thing


def render_class(name: str, kind: type) -> list[str]:
    """A class, then its public methods and properties."""
    parts = [f"## {name}", *render_call(name.rpartition(".")[2], kind)]
    for member, value in vars(kind).items():
        function = getattr(value, "__func__", value)
        if member.startswith("_"):
            continue
        if isinstance(value, property):
            parts += [f"### {member}", render_docstring(value)]
        elif inspect.isfunction(function):
            parts += [f"### {member}", *render_call(member, function)]
    return parts


def render_call(name: str, thing: Any) -> list[str]:
    """How it is called, and what its docstring says."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return [render_docstring(thing)]
    own = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in signature.parameters.values()
        if each.name not in ("self", "cls")
    ]
    words = str(signature.replace(parameters=own, return_annotation=inspect.Signature.empty))
    words = re.sub(r"<([\w.]+)[^<>]*>", r"\1", words)  # defaults that are objects
    if len(name) + len(words) > MOST_COLUMNS:  # an argument for each line
        words = "(\n" + "".join(f"    {each},\n" for each in own) + ")"
        words = re.sub(r"<([\w.]+)[^<>]*>", r"\1", words)
    return [f"```text\n{name}{words}\n```", render_docstring(thing)]


def render_docstring(thing: Any) -> str:
    """A docstring of Google's style as Markdown: arguments as a list, examples in frames."""
    paragraphs = re.split(r"\n\s*\n", inspect.getdoc(thing) or "")
    return "\n\n".join(_render_paragraph(each) for each in paragraphs)


def _render_paragraph(text: str) -> str:
    lines = text.splitlines()
    if lines and lines[0] == "Args:":
        return "\n".join(_render_arguments(lines[1:]))
    if text.lstrip().startswith(">>>"):
        return f"```pycon\n{inspect.cleandoc(text)}\n```"
    if lines and all(each.startswith("    ") for each in lines):
        return f"```text\n{inspect.cleandoc(text)}\n```"
    return text.replace("::", ":") if text.endswith("::") else text


def _render_arguments(lines: list[str]) -> Iterator[str]:
    for line in lines:
        entry = ENTRY.match(line)
        if entry is None:
            yield f"  {line.strip()}"
        else:
            names = ", ".join(f"`{each.strip()}`" for each in entry[1].split(","))
            yield f"- {names}: {entry[2]}"
