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
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PACKAGE = "modelfactory"
WITHOUT_EFFECT = (f"{PACKAGE}.errors", f"{PACKAGE}.spec.checking")
"""Modules that refuse bad values and change no good one: their wording and rules change no result."""


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


class Parsed:
    """What was read out of source files, by path, size and time of modification.

    Parsing is nine tenths of a trace; `to_json` lets a caller keep it from one process to the next.
    """

    def __init__(self, kept: Mapping[str, Any] | None = None) -> None:
        """Begin with what `to_json` gave, if it was read by this reader and this Python."""
        known = kept if kept is not None and kept.get("reader") == _reader() else {}
        self._files: dict[str, Any] = dict(known.get("files", {}))
        self._modules: dict[str, _Module] = {}
        self.has_grown = False

    def module(self, name: str) -> _Module:
        """Return a module of this package or of the user; an empty one for a library."""
        path = source_file(name)
        if path is None:
            return _Module({}, {})
        key = f"{name} {path}"
        if key not in self._modules:
            self._modules[key] = self._read(key, name, path)
        return self._modules[key]

    def _read(self, key: str, name: str, path: Path) -> _Module:
        stat = path.stat()
        state = [stat.st_size, stat.st_mtime_ns]
        known = self._files.get(key)
        if known is not None and known["state"] == state:
            return _module_from(known)
        module = _parse_file(name, path)
        if time.time_ns() - stat.st_mtime_ns > _SETTLED_NS:
            self._files[key] = {"state": state, **_module_to(module)}
            self.has_grown = True
        return module

    def to_json(self) -> dict[str, Any]:
        """Return what another `Parsed` can begin with."""
        return {"reader": _reader(), "files": self._files}


_SETTLED_NS = 2_000_000_000
"""A file younger than this may be written again within one tick of its file system's clock."""


@lru_cache(maxsize=1)
def _reader() -> str:
    """Name the code that parses, and the Python whose syntax trees it digests."""
    own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return f"{sys.version} {own}"


def _module_to(module: _Module) -> dict[str, Any]:
    definitions = {name: [each.digest, each.names, each.imports] for name, each in module.definitions.items()}
    return {"definitions": definitions, "imports": module.imports}


def _module_from(value: Mapping[str, Any]) -> _Module:
    definitions = {
        name: _Definition(digest, tuple(map(tuple, names)), tuple(map(tuple, imports)))
        for name, (digest, names, imports) in value["definitions"].items()
    }
    return _Module(definitions, {name: tuple(target) for name, target in value["imports"].items()})


def trace(roots: Iterable[str], parsed: Parsed | None = None) -> Code:
    """Return the code reached from `roots`, each `module:name`."""
    known = parsed or Parsed()
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
        if module_name in WITHOUT_EFFECT:
            continue
        if source_file(module_name) is None:
            libraries.add(module_name.partition(".")[0])
            continue
        pending.extend(_follow(known, module_name, name, definitions))
    return Code(definitions=dict(sorted(definitions.items())), libraries=_versions(libraries))


def _follow(
    parsed: Parsed, module_name: str, name: str, definitions: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Record one definition and yield what it refers to."""
    module = parsed.module(module_name)
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


def _parse_file(module_name: str, path: Path) -> _Module:
    text = path.read_text(encoding="utf-8")
    package = module_name if path.name == "__init__.py" else module_name.rpartition(".")[0]
    tree = ast.parse(text, filename=str(path))
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


class _Reader:
    """Writes the syntax tree of a definition as text, and collects what it refers to, in one walk.

    Left out is what changes no behaviour: docstrings, annotations, field lists of dataclasses.
    """

    def __init__(self, package: str) -> None:
        self.text: list[str] = []
        self.names: set[tuple[str, str]] = set()
        self.imports: list[tuple[str, str, str]] = []
        self._package = package

    def read(self, node: ast.AST) -> None:
        """Take in one node with all below it."""
        self._collect(node)
        self.text.append(f"({type(node).__name__}")
        left_out = _LEFT_OUT.get(type(node), ())
        for name in node._fields:
            if name not in left_out:
                value = getattr(node, name, None)
                self._value(_behaving(node, value) if name == "body" else value)
        self.text.append(")")

    def _value(self, value: Any) -> None:
        if isinstance(value, ast.AST):
            self.read(value)
        elif isinstance(value, list):
            self.text.append("[")
            for item in value:
                self._value(item)
            self.text.append("]")
        else:
            self.text.append(f"{value!r},")

    def _collect(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            self.names.add((node.id, ""))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            self.names.add((node.value.id, node.attr))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imports.extend(_imported(node, self._package))


_LEFT_OUT: Final[Mapping[type[ast.AST], tuple[str, ...]]] = MappingProxyType(
    {
        ast.FunctionDef: ("returns", "type_comment"),
        ast.AsyncFunctionDef: ("returns", "type_comment"),
        ast.arg: ("annotation", "type_comment"),
        ast.AnnAssign: ("annotation",),
        ast.Name: ("ctx",),
        ast.Attribute: ("ctx",),
    }
)


def _definition(nodes: Iterable[ast.stmt], package: str) -> _Definition:
    reader = _Reader(package)
    for node in nodes:
        reader.read(node)
    # `module.attribute` is walked as an attribute and as a bare name; the bare one would mean all of it
    with_attribute = {name for name, attribute in reader.names if attribute}
    kept = sorted((n, a) for n, a in reader.names if a or n not in with_attribute)
    digest = hashlib.sha256("".join(reader.text).encode("utf-8", "surrogatepass")).hexdigest()
    return _Definition(digest[:16], tuple(kept), tuple(reader.imports))


def _behaving(node: ast.AST, body: Any) -> Any:
    """Return the statements of a function or class without those that change no behaviour."""
    if isinstance(node, ast.ClassDef) and any("dataclass" in ast.dump(each) for each in node.decorator_list):
        body = [item for item in body if not _is_field(item)]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return _without_strings(body)
    return body


def _is_field(item: ast.stmt) -> bool:
    """Say whether a statement of a dataclass declares a field; a ClassVar is code."""
    return isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.dump(item.annotation)


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
    return kept or [_PASS]


_PASS: Final = ast.Pass()


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
