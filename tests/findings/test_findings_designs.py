"""Which stored evaluations tell the noise of a planned one."""

from __future__ import annotations

import json

import pytest

from modelfactory.findings.designs import _same_task
from modelfactory.store import Record

SPEC = {"task": {"name": "quiz"}}
PLANNED = {"checkpoint": "c1", "tokenizer": "t1", "items": "digest of the file"}


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({}, True),
        ({"checkpoint": "c2", "tokenizer": "t2"}, True),
        ({"items": "digest of the file as edited"}, False),
        ({"documents": "d1"}, False),
    ],
)
def test_items_are_the_same_where_all_but_the_model_is(changed: dict[str, str], same: bool) -> None:
    record = Record(fingerprint="f", kind="evaluate", spec_json=json.dumps(SPEC), inputs=PLANNED | changed)
    assert _same_task(record, (SPEC, PLANNED)) is same


def test_another_spec_is_another_task() -> None:
    record = Record(fingerprint="f", kind="evaluate", spec_json='{"task":{"name":"other"}}', inputs=PLANNED)
    assert not _same_task(record, (SPEC, PLANNED))
