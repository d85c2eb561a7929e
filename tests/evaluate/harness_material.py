"""Small tasks of lm-evaluation-harness, with their data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CHOICE = """\
task: choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: multiple_choice
test_split: test
fewshot_split: test
doc_to_text: "{{{{q}}}}"
doc_to_choice: "{{{{c}}}}"
doc_to_target: a
"""
ROLLING = """\
include: choice.yaml
task: rolling
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_choice: null
fewshot_split: null
doc_to_target: "{{q}}there was a dog"
"""
GENERATION = """\
include: choice.yaml
task: generation
output_type: generate_until
doc_to_choice: null
doc_to_target: "{{c[0]}}"
generation_kwargs:
  until: ["e"]
  max_gen_toks: 8
"""


def write_tasks(folder: Path) -> Path:
    """Write tasks of three kinds, and their six items; return the data file."""
    folder.mkdir()
    rows = [
        {"q": f"Once upon a time {n} ", "c": [" there was a boy", " the dog ran"], "a": n % 2}
        for n in range(6)
    ]
    data = folder / "items.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    (folder / "choice.yaml").write_text(CHOICE.format(data=data), encoding="utf-8")
    (folder / "rolling.yaml").write_text(ROLLING, encoding="utf-8")
    (folder / "generation.yaml").write_text(GENERATION, encoding="utf-8")
    return data
