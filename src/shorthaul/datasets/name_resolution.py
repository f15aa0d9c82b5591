"""What a dotted name means where it stands: a module, class or function of the library, or nothing known.

Static and deliberately modest: local variables hide everything, `self` and `super()` look through
the classes that a class is known to inherit, imports are followed through re-exports. What stays
unknown is kept by the graph as a plain name or attribute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shorthaul.datasets.module_syntax import SUPER, UNKNOWN, ModuleSyntax, Reference, Scope

# Longest chain of re-exports or base classes followed; circular ones exist in the library.
_DEEPEST = 12


class Library:
    """All modules together, able to answer `resolve`."""

    def __init__(self, modules: Sequence[ModuleSyntax]) -> None:
        self.modules = {each.name: each for each in modules}
        self.scopes: Mapping[str, Scope] = {
            name: scope for each in modules for name, scope in each.scopes.items()
        }
        self.base_classes: dict[str, list[str]] = {}  # the known classes each inherits directly
        for module in modules:
            for reference in module.references:
                if reference.verb == "inherits":
                    found = self.resolve(reference)
                    if found is not None and self.scopes[found].kind == "class":
                        self.base_classes.setdefault(reference.owner, []).append(found)

    def resolve(self, reference: Reference) -> str | None:
        """The qualified name of what a reference means, `None` where that is not known."""
        scope = self.scopes[reference.owner]
        if reference.verb in ("inherits", "decorated by"):  # said outside the thing itself
            scope = self._parent(scope)
        head, *rest = reference.dotted
        if head == UNKNOWN:
            return None
        if head in ("self", "cls", SUPER):
            return self._resolve_member_of_self(scope, head, rest)
        found = self._look_up(scope, head)
        for part in rest:
            if found is None:
                return None
            found = self._member(found, part)
        return found

    def find_module(self, absolute: str) -> str:
        """The module that an imported name is, or lies in, as far as the library can tell."""
        while absolute and absolute not in self.modules:
            shorter = absolute.rpartition(".")[0]
            if not shorter:
                return absolute
            absolute = shorter
        return absolute

    def resolve_absolute(self, absolute: str, depth: int = 0) -> str | None:
        """What an absolute name such as `os.path.join` is, through re-exports."""
        if absolute in self.modules:
            return absolute
        module_name, _, name = absolute.rpartition(".")
        return self._exported(module_name, name, depth)

    def _parent(self, scope: Scope) -> Scope:
        return scope if scope.parent is None else self.scopes[scope.parent]

    def _resolve_member_of_self(self, scope: Scope, head: str, rest: list[str]) -> str | None:
        while scope.kind != "class":
            if scope.parent is None:
                return None
            scope = self.scopes[scope.parent]
        if len(rest) != 1:
            return None
        starts = (
            self.base_classes.get(scope.qualified_name, [])
            if head == SUPER
            else [scope.qualified_name]
        )
        return next(
            (found for each in starts if (found := self._inherited(each, rest[0], 0))), None
        )

    def _inherited(self, class_name: str, member: str, depth: int) -> str | None:
        found = self.scopes[class_name].members.get(member)
        if found is not None or depth == _DEEPEST:
            return found
        for base in self.base_classes.get(class_name, []):
            found = self._inherited(base, member, depth + 1)
            if found is not None:
                return found
        return None

    def _look_up(self, scope: Scope, name: str) -> str | None:
        asking = scope
        while scope.kind != "module":
            # A class body sees its own names, but the functions in it do not.
            if scope.kind == "function" or scope is asking:
                if name in scope.members:
                    return scope.members[name]
                if name in scope.bound and name not in scope.shared:
                    return None
            scope = self._parent(scope)
        return self._exported(scope.qualified_name, name, 0)

    def _member(self, owner: str, name: str) -> str | None:
        scope = self.scopes.get(owner)
        if scope is None:
            return None
        if scope.kind == "module":
            return self._exported(owner, name, 0)
        return self._inherited(owner, name, 0) if scope.kind == "class" else None

    def _exported(self, module_name: str, name: str, depth: int) -> str | None:
        """What `module_name.name` is: defined there, a submodule, or imported from elsewhere."""
        module = self.modules.get(module_name)
        if module is None or depth == _DEEPEST:
            return None
        scope = module.scopes[module_name]
        if name in scope.members:
            return scope.members[name]
        if name in module.imported_names:
            return self.resolve_absolute(module.imported_names[name], depth + 1)
        submodule = f"{module_name}.{name}"
        if submodule in self.modules:
            return submodule
        if name in scope.bound:
            return None
        for starred in module.star_imports:
            found = self._exported(starred, name, depth + 1)
            if found is not None:
                return found
        return None
