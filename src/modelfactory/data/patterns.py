"""Patterns of paths, and the walk that finds what they match."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from modelfactory.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern.

    `**/` stands for any number of folders, a last `**` for everything below, `*` and `?` for characters of
    one name, `[abc]` and `[!abc]` for one character. A leading dot is nothing special.
    """
    pieces = re.findall(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|[^*?\[]+|\[", pattern)
    return re.compile("".join(_regex(piece) for piece in pieces), re.DOTALL)


def _regex(piece: str) -> str:
    wild = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if piece in wild:
        return wild[piece]
    if piece.startswith("[") and piece.endswith("]") and len(piece) > 2:
        negated = piece[1] == "!"
        body = re.sub(r"([\\\[\]&~|^])", r"\\\1", piece[1 + negated : -1])
        return f"(?!/)[{'^' if negated else ''}{body}]"
    return re.escape(piece)


def matching_files(root: Path, pattern: str, exclude: Sequence[str]) -> list[str]:
    """Return the paths below `root` that match, relative, with `/`, sorted by code point.

    Links to files and folders are followed; a folder that contains itself by a link is entered once.

    Raises:
        SourceError: `root` is no folder, a folder cannot be listed, or nothing matches; the remedy of a
            relative root says what it is relative to.
    """
    given, root = root, root.resolve()
    if not root.is_dir():
        raise _with_start(_no_root(root), given)
    unwanted = [compiled(each) for each in exclude]
    wanted = compiled(pattern)
    matched = [path for path in walk(root, unwanted) if wanted.fullmatch(path)]
    found = sorted(path for path in matched if not any(each.fullmatch(path) for each in unwanted))
    if not found:
        raise _with_start(_no_match(root, pattern, matched), given)
    return found


def walk(root: Path, unwanted: Sequence[re.Pattern[str]] = ()) -> Iterator[str]:
    """Yield the relative path of everything below `root` that is no folder, in no stated order."""
    pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", (_identity(root),))]
    while pending:
        folder, above = pending.pop()
        for entry in _listing(root, folder):
            path = f"{folder}{entry.name}"
            if not entry.is_dir():
                yield path
                continue
            identity = _identity(Path(entry.path))
            if identity not in above and not any(each.fullmatch(f"{path}/\0") for each in unwanted):
                pending.append((f"{path}/", (*above, identity)))


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _listing(root: Path, folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(root / folder) as entries:
            return list(entries)
    except OSError as error:
        raise SourceError(
            place=str(root / folder),
            found=f"a folder that cannot be listed ({error.strerror})",
            wanted="a folder that this user may read",
            remedy="Change its permissions, or leave it out with `exclude`.",
        ) from error


def _no_root(root: Path) -> SourceError:
    if root.exists():
        found, near = "a file", root.parent
    else:
        near = next((parent for parent in root.parents if parent.is_dir()), Path(root.anchor))
        found = "nothing"
    inside = [entry.name for entry in _listing(near, "") if entry.is_dir()]
    missing = root.relative_to(near).parts[0]
    close = get_close_matches(missing, inside, n=1)
    closest = str(near / close[0]) if close else str(near)
    return SourceError(
        place=f"root {root}",
        found=found,
        wanted="a folder",
        remedy=f"The closest existing folder is {closest}.",
    )


def _with_start(fault: SourceError, root: Path) -> SourceError:
    """Say where a relative root begins: whoever started from another folder sees it there."""
    if root.is_absolute():
        return fault
    start = f"The root {str(root)!r} is relative to {Path.cwd()}, where the factory was started."
    return SourceError(
        place=fault.place, found=fault.found, wanted=fault.wanted, remedy=f"{fault.remedy} {start}".lstrip()
    )


def _no_match(root: Path, pattern: str, excluded: Sequence[str]) -> SourceError:
    if excluded:
        found = f"{len(excluded)} files, all of them left out by `exclude`"
        remedy = f"One of them is {min(excluded)}."
    else:
        found, remedy = "no file", _closest_file(root, pattern)
    return SourceError(
        place=f"pattern {pattern!r} below root {root}",
        found=found,
        wanted="at least one file",
        remedy=remedy,
    )


def _closest_file(root: Path, pattern: str) -> str:
    paths = [path for path, _ in zip(walk(root), range(10_000), strict=False)]
    if not paths:
        return "There is no file at all below that root."
    same_ending = [path for path in paths if Path(path).suffix == Path(pattern).suffix]
    candidates = sorted(same_ending or paths)
    close = get_close_matches(pattern, candidates, n=1, cutoff=0.0)
    return f"The closest file there is {close[0]}."
