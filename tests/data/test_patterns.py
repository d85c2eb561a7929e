"""Which paths a pattern means."""

from pathlib import Path

import pytest

from modelfactory.data.patterns import compiled, matching_files
from modelfactory.errors import SourceError


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "a/b.py", False),
        ("**/*.py", "b.py", True),
        ("**/*.py", "a/c/b.py", True),
        ("a/**", "a/b/c", True),
        ("a/**/c", "a/c", True),
        ("a/**/c", "a/b/b/c", True),
        ("a?.txt", "ab.txt", True),
        ("a?.txt", "a/.txt", False),
        ("[ab].txt", "b.txt", True),
        ("[!ab].txt", "b.txt", False),
        ("[!ab].txt", "/.txt", False),
        ("[*].txt", "*.txt", True),
        ("[[]x].txt", "[x].txt", True),
        ("[.txt", "[.txt", True),
        ("a.b", "axb", False),
        (".*", ".hidden", True),
        ("*", ".hidden", True),
        ("д*.txt", "дом.txt", True),
        ("*", "line\nbreak", True),
    ],
)
def test_patterns(pattern, path, matches):
    assert bool(compiled(pattern).fullmatch(path)) == matches


@pytest.fixture
def tree(tmp_path):
    for name in ("b.txt", "a/x.txt", "a/deep/y.txt", "skip/z.txt", "Z.txt", "a.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_files_come_sorted_by_code_point(tree):
    found = matching_files(tree, "**/*.txt", ("skip/**",))
    assert found == ["Z.txt", "a/deep/y.txt", "a/x.txt", "b.txt"]


def test_links_are_followed_and_circles_end(tree):
    (tree / "a/up").symlink_to(tree)
    (tree / "linked").symlink_to(tree / "skip")
    found = matching_files(tree, "**/*.txt", ())
    assert "linked/z.txt" in found
    assert not any(path.startswith("a/up") for path in found)


def test_a_missing_root_names_the_closest_folder(tree):
    with pytest.raises(SourceError, match=r"root .*/skipp: found nothing, wanted a folder\. .*/skip\.$"):
        matching_files(tree / "skipp", "*", ())


def test_a_file_as_root_is_named(tree):
    with pytest.raises(SourceError, match="found a file, wanted a folder"):
        matching_files(tree / "b.txt", "*", ())


def test_no_match_names_root_pattern_and_the_closest_file(tree):
    with pytest.raises(SourceError) as caught:
        matching_files(tree, "a/*.text", ())
    assert str(tree) in str(caught.value)
    assert "'a/*.text'" in str(caught.value)
    assert "a/x.txt" in caught.value.remedy


def test_no_match_because_of_exclude_says_so(tree):
    with pytest.raises(SourceError, match="1 files, all of them left out by `exclude`"):
        matching_files(tree, "*.md", ("a*",))


def test_an_empty_root_says_so(tmp_path):
    with pytest.raises(SourceError, match="no file at all"):
        matching_files(tmp_path, "*", ())


@pytest.mark.parametrize(("root", "pattern"), [("skip", "*.rs"), ("skipp", "*")])
def test_a_relative_root_says_where_it_begins(tree, monkeypatch, root, pattern):
    monkeypatch.chdir(tree)
    with pytest.raises(SourceError) as caught:
        matching_files(Path(root), pattern, ())
    assert f"The root {root!r} is relative to {tree.resolve()}" in caught.value.remedy
    with pytest.raises(SourceError) as caught:
        matching_files(tree / root, pattern, ())
    assert "is relative to" not in caught.value.remedy
