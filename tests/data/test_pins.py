"""Content alone makes a pin."""

import json
import os

import pytest

from modelfactory.data import MemoryCache, Pin, pin, pin_file
from modelfactory.errors import InvalidInputs, SourceError


class CountingCache(MemoryCache):
    puts = 0

    def put(self, *args):
        self.puts += 1
        super().put(*args)


def test_touching_changes_nothing_and_one_byte_changes_the_pin(place):
    file = place.put("a.txt", "one")
    place.put("b/ж.txt", "two")
    before = pin(place.files(), place.cache)
    os.utime(file, (1, 1))
    assert pin(place.files(), place.cache) == before
    place.put("a.txt", "onf")
    assert pin(place.files(), place.cache).digest != before.digest


def test_a_moved_root_has_the_same_digest_and_a_renamed_file_has_not(place):
    place.put("a.txt", "one")
    before = pin(place.files(), place.cache)
    place.source.rename(place.root / "moved")
    place.source = place.root / "moved"
    assert pin(place.files(), place.cache).digest == before.digest
    (place.source / "a.txt").rename(place.source / "b.txt")
    assert pin(place.files(), place.cache).digest != before.digest


def test_an_unchanged_file_is_read_once(place):
    place.put("a.txt", "one")
    cache = CountingCache()
    assert pin(place.files(), cache) == pin(place.files(), cache)
    assert cache.puts == 1


def test_a_pin_survives_its_file(place):
    place.put("a.txt", "one")
    made = pin(place.files(), place.cache)
    made.write(place.root / "pin.json")
    assert Pin.read(place.root / "pin.json") == made
    data = json.loads((place.root / "pin.json").read_text())
    assert (data["kind"], data["digest"]) == ("files", made.digest)
    assert made.n_bytes == 3


def test_one_file_can_be_pinned(place):
    file = place.put("tokenizer.json", "{}")
    assert [f.path for f in pin_file(file, place.cache).files] == ["tokenizer.json"]
    with pytest.raises(SourceError, match=r"no readable file \(No such file"):
        pin_file(place.source / "none.json", place.cache)


def test_files_that_cannot_be_read_are_named_together(place):
    place.put("good.txt", "one")
    (place.source / "gone.txt").symlink_to("/nowhere/at/all")
    os.mkfifo(place.source / "pipe.txt")
    with pytest.raises(InvalidInputs) as caught:
        pin(place.files(), place.cache)
    assert [error.found for error in caught.value.errors] == [
        "no readable file (No such file or directory)",
        "a pipe, socket or device",
    ]


def test_a_file_without_permission_is_named(place, monkeypatch):
    file = place.put("secret.txt", "one")
    monkeypatch.setattr(type(file), "open", denied)
    with pytest.raises(SourceError, match=r"secret\.txt: found a file that cannot be read \(Permission"):
        pin(place.files(), place.cache)


def denied(*_args, **_options):
    raise PermissionError(13, "Permission denied")


def test_a_name_that_is_not_utf8_is_refused(place):
    place.put("a.txt", "one")
    (place.source / os.fsdecode(b"\xff.txt")).write_bytes(b"")
    with pytest.raises(SourceError, match="a name that is not UTF-8"):
        pin(place.files(), place.cache)


def test_refuse_is_told_by_the_plan_with_file_and_offset(place):
    place.put("latin.txt", b"caf\xe9 au lait")
    with pytest.raises(SourceError, match=r"latin\.txt: found 0xe9 at byte 3, which is not UTF-8") as caught:
        pin(place.files(not_utf8="refuse"), place.cache)
    assert "not_utf8='drop'" in caught.value.remedy
    assert not place.cache.known  # or the next plan would miss it
    assert pin(place.files(not_utf8="drop"), place.cache).files


def test_a_source_that_matches_nothing_is_called_by_its_place(place):
    place.put("a.txt", "one")
    with pytest.raises(SourceError) as caught:
        pin(place.files(pattern="*.rs"), place.cache, place="dataset 'python': sources[0]")
    assert caught.value.place.startswith("dataset 'python': sources[0]: pattern '*.rs' below root ")
