"""lm-eval's tasks on our engine and on its own Hugging Face backend: equal item by item."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.evaluate.harness_material import write_tasks
from tests.interchange.material import bpe, built

from modelfactory.evaluate.harness_files import find_task
from modelfactory.generate import LanguageModel
from modelfactory.interchange import export_hugging_face
from modelfactory.models import Llama

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("lm_eval")
pytest.importorskip("accelerate", reason="lm-eval's Hugging Face backend needs it")
pytestmark = pytest.mark.filterwarnings("ignore")  # of lm-eval and its libraries

SPEC = Llama(n_layers=3, d_model=64, n_heads=4, n_kv_heads=2, max_seq_len=128)


# lm-eval puts the token for the beginning before each context only where the tokenizer does, and scores it as
# a token of the text in rolling tasks; ours stands before each sequence once and is never scored.
@pytest.mark.parametrize(
    ("task", "n_shot", "add_bos"),
    [("choice", 0, True), ("choice", 1, True), ("rolling", 0, False), ("generation", 0, True)],
)
def test_answers_are_those_of_lm_evals_own_backend(
    task: str, n_shot: int, add_bos: bool, tmp_path: Path
) -> None:
    from lm_eval.models.huggingface import HFLM

    from modelfactory.evaluate.harness_model import HarnessModel
    from modelfactory.evaluate.harness_run import samples_of

    module, tokenizer = built(SPEC), bpe()
    export_hugging_face(module, SPEC, tokenizer, tmp_path / "model")
    write_tasks(tmp_path / "tasks")
    files = find_task(task, str(tmp_path / "tasks"))
    model = LanguageModel(module, tokenizer, max_seq_len=SPEC.max_seq_len)
    peer = HFLM(
        pretrained=str(tmp_path / "model"), device="cpu", dtype="float32", batch_size=1, add_bos_token=add_bos
    )
    ours, theirs = (samples_of(lm, files, n_shot=n_shot, limit=0) for lm in (HarnessModel(model), peer))
    assert len(ours) == len(theirs) == 6
    for found, wanted in zip(ours, theirs, strict=True):
        assert found["doc_hash"] == wanted["doc_hash"]
        assert found["arguments"] == wanted["arguments"]
        assert numbers(found) == pytest.approx(numbers(wanted), abs=1e-4)
        assert [r for r in flat(found["resps"]) if not isinstance(r, float)] == [
            r for r in flat(wanted["resps"]) if not isinstance(r, float)
        ]


def numbers(sample: dict[str, Any]) -> list[float]:
    """Log-likelihoods."""
    return [found for found in flat(sample["resps"]) if isinstance(found, float)]


def flat(value: Any) -> list[Any]:
    return [x for each in value for x in flat(each)] if isinstance(value, (list, tuple)) else [value]


def test_a_model_without_a_token_before_texts_is_read_as_lm_eval_does_by_default(tmp_path: Path) -> None:
    """Also an empty context, and items that are longer than the context."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    module, tokenizer = built(SPEC), bpe()
    export_hugging_face(module, SPEC, tokenizer, tmp_path / "model")
    model = LanguageModel(module, tokenizer, max_seq_len=SPEC.max_seq_len, adds_prefix=False)
    peer = HFLM(
        pretrained=str(tmp_path / "model"), device="cpu", dtype="float32", batch_size=1, add_bos_token=False
    )
    long = "a dog and a cat " * 40
    pairs = [("Once upon a time", " there was"), ("", "Once upon"), (long, " a dog"), ("x", " the end")]
    asked = [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=n) for n, pair in enumerate(pairs)
    ]
    ours, theirs = model.loglikelihood(pairs), peer.loglikelihood(asked)
    assert [each.logprob for each in ours] == pytest.approx([score for score, _ in theirs], abs=1e-4)
    assert [each.is_greedy for each in ours] == [greedy for _, greedy in theirs]
    assert [each.n_cut > 0 for each in ours] == [False, False, True, False]
