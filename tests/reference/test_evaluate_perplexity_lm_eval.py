"""Perplexity of documents against lm-evaluation-harness: its backend, its formulas."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.interchange.material import bpe, built

from modelfactory.errors import SourceError, SpecError
from modelfactory.evaluate import ItemFile, Perplexity
from modelfactory.evaluate.estimate import estimate
from modelfactory.evaluate.item_files import checked_rows
from modelfactory.generate import LanguageModel
from modelfactory.interchange import export_hugging_face
from modelfactory.models import Llama

if TYPE_CHECKING:
    from pathlib import Path

    from modelfactory.evaluate.task import Answers

pytestmark = pytest.mark.filterwarnings("ignore")  # of lm-eval and its libraries
SPEC = Llama(n_layers=2, d_model=64, n_heads=4, max_seq_len=64)
TEXTS = [
    "Once upon a time there was a dog.",
    " one\n\ntwo  three ",
    "\N{CJK UNIFIED IDEOGRAPH-732B} \N{GREEK SMALL LETTER ALPHA} " * 60,
    "x",
]


def answers(folder: Path, model: LanguageModel, texts: list[str] = TEXTS, **fields: Any) -> Answers:
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    task = Perplexity(items=ItemFile(path=str(file)), **fields)
    rows = {"items": checked_rows(task, "items", file, file.read_bytes())}
    return task.answer(task.prepare(rows, model.tokenizer), model)


@pytest.fixture
def model() -> LanguageModel:
    return LanguageModel(built(SPEC), bpe(), max_seq_len=64)


def test_log_likelihoods_and_perplexities_are_those_of_lm_eval(tmp_path: Path, model: LanguageModel) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.api.metrics import weighted_perplexity
    from lm_eval.models.huggingface import HFLM

    export_hugging_face(built(SPEC), SPEC, bpe(), tmp_path / "model")
    peer = HFLM(
        pretrained=str(tmp_path / "model"), device="cpu", dtype="float32", batch_size=1, add_bos_token=False
    )
    asked = [
        Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=n)
        for n, text in enumerate(TEXTS)
    ]
    wanted = peer.loglikelihood_rolling(asked)
    found = answers(tmp_path, model)
    assert [-each.detail["nats"] for each in found.outcomes] == pytest.approx(wanted, abs=1e-4)
    words = [(score, len(re.split(r"\s+", text))) for score, text in zip(wanted, TEXTS, strict=True)]
    n_bytes = [(score, len(text.encode())) for score, text in zip(wanted, TEXTS, strict=True)]
    assert found.facts["word_perplexity"] == pytest.approx(weighted_perplexity(words), rel=1e-5)
    assert found.facts["byte_perplexity"] == pytest.approx(weighted_perplexity(n_bytes), rel=1e-5)
    assert found.facts["bits_per_byte"] == pytest.approx(math.log2(weighted_perplexity(n_bytes)), rel=1e-5)


@pytest.mark.parametrize("per", ["word", "byte", "token"])
def test_the_metric_is_the_logarithm_of_the_perplexity(
    tmp_path: Path, model: LanguageModel, per: Any
) -> None:
    found = answers(tmp_path, model, per=per)
    columns = zip(*((each.value, each.weight, each.cluster) for each in found.outcomes), strict=True)
    metric = estimate(*map(list, columns))  # type: ignore[arg-type]
    assert math.exp(metric.value) == pytest.approx(found.facts[f"{per}_perplexity"])
    assert metric.stderr is not None
    assert metric.n_items == len(TEXTS)


def test_every_token_is_scored_once(tmp_path: Path, model: LanguageModel) -> None:
    """A text longer than the context: as the sum over its tokens, each asked alone in its window."""
    found = answers(tmp_path, model, [TEXTS[2]])
    ids = model.tokenizer.encode_batch([TEXTS[2]])[0]
    assert len(ids) > SPEC.max_seq_len
    assert found.facts["n_tokens"] == len(ids)
    [score] = model.score_texts([ids])
    assert found.outcomes[0].detail["nats"] == pytest.approx(-score.logprob)


def test_wrong_settings_and_texts(tmp_path: Path, model: LanguageModel) -> None:
    with pytest.raises(SourceError, match=r"texts.jsonl, line 2.*wanted text"):
        answers(tmp_path, model, ["fine", " "])
    with pytest.raises(SpecError, match=r"Perplexity\.per.*sentence"):
        Perplexity(items=ItemFile(path="x"), per="sentence")  # type: ignore[arg-type]
