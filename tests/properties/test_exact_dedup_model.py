"""Exact deduplication against a few lines of plain Python that remember what they have seen."""

from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelfactory.data import ExactDedup
from modelfactory.data.documents import SCHEMA, Document
from modelfactory.data.drops import Drops
from modelfactory.data.frame import prepared

TEXTS = st.lists(
    st.text(alphabet="ab \n\té", min_size=1, max_size=12).filter(lambda text: bool(text.strip())),
    min_size=1,
    max_size=12,
)


@dataclass
class Remembering:
    """What has been seen, and how texts are compared."""

    step: ExactDedup
    seen: set

    def is_new(self, text):
        key = " ".join(text.split()) if self.step.normalise == "whitespace" else text
        new = key not in self.seen
        self.seen.add(key)
        return new

    def left(self, text):
        if self.step.unit == "document":
            return text if self.is_new(text) else ""
        new = [(line, self.is_new(line)) for line in text.split("\n")]
        stays = [line for line, n in new if n or len(line) < self.step.min_characters or not line.strip()]
        return "\n".join(stays)


def batches(texts):
    rows = [Document("source0", f"{n}", text, "").row() for n, text in enumerate(texts)]
    tables = [pa.Table.from_pylist([{k: row[k] for k in SCHEMA.names}], SCHEMA) for row in rows]
    middle = len(tables) // 2
    return [pa.concat_tables(part) for part in (tables[:middle], tables[middle:]) if part]


@pytest.mark.parametrize("unit", ["document", "line"])
@pytest.mark.parametrize("normalise", ["nothing", "whitespace"])
@settings(max_examples=20, deadline=None)
@given(texts=TEXTS, least=st.integers(0, 3))
def test_the_first_survives_as_plain_python_says(unit, normalise, texts, least):
    prepared(1)
    step = ExactDedup(normalise=normalise, unit=unit, min_characters=least if unit == "line" else 0)
    model, drops = Remembering(step, set()), Drops()
    wanted = [(str(n), left) for n, text in enumerate(texts) if (left := model.left(text)).strip()]
    got = [
        (row["path"], row["text"])
        for batch in step.survivors(batches(texts), drops)
        for row in batch.to_pylist()
    ]
    assert got == wanted
    assert drops.counts.total() == len(texts) - len(wanted)
