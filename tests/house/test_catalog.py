"""The public names are the catalog: `shorthaul.__all__`, each one there and each one explained."""

import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import shorthaul

ROOT = Path(__file__).parents[2]


def find_catalog_problems(module: ModuleType, pages: Sequence[Path]) -> list[str]:
    """What is wrong with the public names of `module`, as explained in `pages`."""
    names = list(module.__all__)
    problems = []
    if names != sorted(set(names)):
        problems.append("__all__ is not sorted, or names something twice")
    texts = "\n".join(page.read_text() for page in pages)
    for name in names:
        if name == "__version__":
            continue
        if name.startswith("_"):
            problems.append(f"{name} is private and yet public")
        if getattr(module, name, None) is None:
            problems.append(f"{name} is listed, but not there")
        if not re.search(rf"\bsh\.{re.escape(name)}\b", texts):
            problems.append(f"{name} is explained on no page: write of it as sh.{name}")
    public = {name for name in vars(module) if not name.startswith("_")}
    modules = {name for name in public if isinstance(getattr(module, name), ModuleType)}
    problems += [f"{name} is there, but not listed" for name in sorted(public - modules - {*names})]
    return problems


def test_public_names_are_the_catalog() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    problems = find_catalog_problems(shorthaul, pages)
    assert not problems, "\n".join(problems)


def test_the_version_is_that_of_the_changelog() -> None:
    assert f"## [{shorthaul.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_a_bad_catalog_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Use `sh.known` and `sh.missing`, not `sh.unknownable`.\n")
    module = ModuleType("package")
    module.known = module.unknown = module._private = module.unlisted = 1  # type: ignore[attr-defined]
    module.submodule = ModuleType("package.submodule")  # type: ignore[attr-defined]
    module.__all__ = ["known", "unknown", "missing", "_private"]  # type: ignore[attr-defined]
    assert find_catalog_problems(module, [page]) == [
        "__all__ is not sorted, or names something twice",
        "unknown is explained on no page: write of it as sh.unknown",
        "missing is listed, but not there",
        "_private is private and yet public",
        "_private is explained on no page: write of it as sh._private",
        "unlisted is there, but not listed",
    ]


def test_a_good_catalog_has_no_problems(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`sh.known(1)`\n")
    module = ModuleType("package")
    module.known, module.__version__ = 1, "1.0"  # type: ignore[attr-defined]
    module.__all__ = ["__version__", "known"]  # type: ignore[attr-defined]
    assert find_catalog_problems(module, [page]) == []
