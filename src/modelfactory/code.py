"""Which source a stage runs, definition by definition.

A stored result made by other code must not be served silently. Starting from the stage function and the
classes and functions its spec names, this follows names through the modules of this package and of the
user, and hashes the syntax tree of every definition that is reached: comments, blank lines, formatting and
docstrings do not count, and neither does a definition nobody calls. Fields of dataclasses are left out too:
their values are in the spec. For everything outside (torch, numpy, ...) the installed version is recorded.

Limits, on purpose: a name built at run time (`getattr(module, text)`) is not followed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import sys
import sysconfig
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGE = "modelfactory"


@dataclass(frozen=True, kw_only=True)
class Code:
    """The source behind a stage."""

    definitions: dict[str, str] = field(default_factory=dict)
    """`module:name` -> the first 16 hexadecimal digits of the SHA-256 of its syntax tree."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Distribution -> installed version."""


@dataclass(frozen=True)
class _Definition:
    digest: str
    names: tuple[tuple[str, str], ...]
    """(name, attribute or ""): what the definition refers to."""
    imports: tuple[tuple[str, str, str], ...] = ()
    """(local name, module, attribute or ""): imports inside its body."""


@dataclass(frozen=True)
class _Module:
    definitions: dict[str, _Definition]
    imports: dict[str, tuple[str, str]]
    """Local name -> (module, attribute or "")."""


def trace(roots: Iterable[str]) -> Code:
    """Return the code reached from `roots`, each `module:name`."""
    source_file.cache_clear()  # an experiment file of the same name may lie in another folder by now
    pending = [tuple(root.split(":")) for root in roots]
    seen: set[tuple[str, str]] = set()
    definitions: dict[str, str] = {}
    libraries: set[str] = set()
    while pending:
        module_name, name = pending.pop()
        name = name.partition(".")[0]
        if (module_name, name) in seen:
            continue
        seen.add((module_name, name))
        if module_name == f"{PACKAGE}.errors":
            continue  # the wording of an error changes no result
        if source_file(module_name) is None:
            libraries.add(module_name.partition(".")[0])
            continue
        pending.extend(_follow(module_name, name, definitions))
    return Code(definitions=dict(sorted(definitions.items())), libraries=_versions(libraries))


def _follow(module_name: str, name: str, definitions: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Record one definition and yield what it refers to."""
    module = _parsed(module_name)
    if name == "*":
        yield from ((module_name, each) for each in module.definitions)
        return
    if name in module.imports:
        yield _resolved(*module.imports[name])
    found = module.definitions.get(name)
    if found is None:
        if name and source_file(f"{module_name}.{name}") is not None:
            yield f"{module_name}.{name}", "*"
        return
    definitions[f"{module_name}:{name}"] = found.digest
    local = {alias: (target, attribute) for alias, target, attribute in found.imports}
    for alias, target, attribute in found.imports:
        del alias
        if not attribute and source_file(target) is None:
            yield target, ""
    for reference, attribute in found.names:
        yield from _reference(module_name, module, local, reference, attribute)


def _reference(
    module_name: str, module: _Module, local: dict[str, tuple[str, str]], name: str, attribute: str
) -> Iterator[tuple[str, str]]:
    target = local.get(name) or module.imports.get(name)
    if target is None:
        if name in module.definitions:
            yield module_name, name
        return
    found_module, found_name = _resolved(*target)
    if found_name in ("", "*"):  # the name is a module: follow the attribute taken from it
        yield found_module, attribute or "*"
    else:
        yield found_module, found_name


def _resolved(module_name: str, attribute: str) -> tuple[str, str]:
    """Turn `from package import module` into the module."""
    if attribute and source_file(module_name) is not None and source_file(f"{module_name}.{attribute}"):
        return f"{module_name}.{attribute}", ""
    return module_name, attribute


@lru_cache(maxsize=4096)
def source_file(module_name: str) -> Path | None:
    """Return the file of a module of this package or of the user; None for libraries.

    Nothing is imported for it: a stage's modules import torch, and a plan must not wait for that.
    """
    top, *rest = module_name.split(".")
    origin = _origin(top)
    if origin is None or (top != PACKAGE and any(origin.is_relative_to(f) for f in _library_folders())):
        return None
    if not rest:
        return origin
    stem = origin.parent.joinpath(*rest)
    found = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((path for path in found if path.is_file()), None)


def _origin(top: str) -> Path | None:
    """Return the file of a top-level module."""
    loaded = sys.modules.get(top)
    if loaded is not None:
        origin = getattr(loaded, "__file__", None)
    else:
        found = importlib.util.find_spec(top)
        origin = found.origin if found is not None else None
    return Path(origin).resolve() if origin and origin.endswith(".py") else None


@lru_cache(maxsize=1)
def _library_folders() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(sorted({Path(sysconfig.get_path(name)).resolve() for name in names}))


def _parsed(module_name: str) -> _Module:
    path = source_file(module_name)
    if path is None:
        return _Module({}, {})
    stat = path.stat()
    return _parse_file(module_name, str(path), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _parse_file(module_name: str, path: str, mtime_ns: int, size: int) -> _Module:
    del mtime_ns, size  # they only make the memory of an edited file stale
    text = Path(path).read_text(encoding="utf-8")
    package = module_name if Path(path).name == "__init__.py" else module_name.rpartition(".")[0]
    tree = ast.parse(text, filename=path)
    imports: dict[str, tuple[str, str]] = {}
    parts: dict[str, list[ast.stmt]] = {}
    for statement in _top_level(tree.body):
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            imports |= {alias: (target, name) for alias, target, name in _imported(statement, package)}
        else:
            for name in _bound(statement):
                parts.setdefault(name, []).append(statement)
    return _Module({name: _definition(nodes, package) for name, nodes in parts.items()}, imports)


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, looking into `if` and `try`, whose branches bind names too."""
    for statement in body:
        if isinstance(statement, ast.If):
            if "TYPE_CHECKING" not in ast.dump(statement.test):
                yield from _top_level([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            handlers = [inner for handler in statement.handlers for inner in handler.body]
            yield from _top_level([*statement.body, *handlers, *statement.orelse, *statement.finalbody])
        else:
            yield statement


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    return [
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], alias.name, ""
        return
    base = node.module or ""
    if node.level:
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*above, base] if base else above)
    for alias in node.names:
        yield alias.asname or alias.name, base, alias.name


def _definition(nodes: list[ast.stmt], package: str) -> _Definition:
    stripped = [_Strip().visit(node) for node in nodes]
    text = "\n".join(ast.dump(node) for node in stripped)
    names: set[tuple[str, str]] = set()
    imports: list[tuple[str, str, str]] = []
    for node in stripped:
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Import, ast.ImportFrom)):
                imports.extend(_imported(inner, package))
            elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
                names.add((inner.value.id, inner.attr))
            elif isinstance(inner, ast.Name):
                names.add((inner.id, ""))
    # `module.attribute` is walked as an attribute and as a bare name; the bare one would mean all of it
    with_attribute = {name for name, attribute in names if attribute}
    kept = sorted((n, a) for n, a in names if a or n not in with_attribute)
    return _Definition(hashlib.sha256(text.encode()).hexdigest()[:16], tuple(kept), tuple(imports))


class _Strip(ast.NodeTransformer):
    """Take out what changes no behaviour: docstrings, annotations, field lists of dataclasses."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        node.body = _without_strings(node.body)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        body = _without_strings(node.body)
        if any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list):
            body = [item for item in body if not isinstance(item, ast.AnnAssign)]
        node.body = body or [ast.Pass()]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(value=None)
        return self.generic_visit(node)


def _without_strings(body: list[ast.stmt]) -> list[ast.stmt]:
    kept = [
        item
        for item in body
        if not (
            isinstance(item, ast.Expr)
            and isinstance(item.value, ast.Constant)
            and isinstance(item.value.value, str)
        )
    ]
    return kept or [ast.Pass()]


def _versions(top_level: set[str]) -> dict[str, str]:
    """Return the installed versions of imported libraries; the standard library has none of its own."""
    versions = {}
    for name in sorted(top_level - set(sys.stdlib_module_names)):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Name the definitions that differ, as `module:name`.

    Those that were edited come first: they are why others are reached now, or are reached no more.
    """
    differing = (key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return sorted(differing, key=lambda key: (not (key in before and key in after), key))
