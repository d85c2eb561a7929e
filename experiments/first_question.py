"""Does a Llama-like decoder learn Python better than a GPT-2-like one, and does removing repeats help?

Two decoders of equal size and two treatments of the same corpus, the Python standard library of this
machine, each with three seeds. Files are held out by their content; every run is judged at four checkpoints
by bits per byte of held-out files, by picking the true next line among four, and by completing functions:
models of this size write no whole body that parses, so they are given all but the end of a short function.
"""

from typing import Literal

from modelfactory import Comparison, Experiment
from modelfactory.data import Dataset, ExactDedup, MaxLength, MinLength, Split, python_standard_library
from modelfactory.evaluate import BitsPerByte, CompleteFunction, NextLine
from modelfactory.models import GPT2, Llama
from modelfactory.tokens import BPE, Mixture, Part
from modelfactory.train import WSD, AdamW, Training

HELD_OUT_SHARE = 0.1
DEDUP = {
    "as found": (),
    "deduplicated": (
        ExactDedup(unit="document", normalise="nothing"),
        ExactDedup(unit="paragraph", normalise="whitespace", min_characters=40),
    ),
}


def python_files(*, part: Literal["train", "held_out"], dedup: tuple[ExactDedup, ...]) -> Dataset:
    """The standard library without its tests, without empty, tiny and huge files."""
    return Dataset(
        name="python",
        sources=(python_standard_library(with_tests=False),),
        filters=(MinLength(n_bytes=200), MaxLength(n_bytes=200_000)),
        dedup=dedup,
        split=Split(part=part, held_out_share=HELD_OUT_SHARE),
    )


TRAIN = {name: python_files(part="train", dedup=dedup) for name, dedup in DEDUP.items()}
HELD_OUT = python_files(part="held_out", dedup=DEDUP["deduplicated"][:1])

MODELS = {
    "gpt2": GPT2(n_layers=4, d_model=128, n_heads=2, max_seq_len=256),
    "llama": Llama(n_layers=4, d_model=128, n_heads=2, d_ff=368, max_seq_len=256, tied=True),
}
SEEDS = (1, 2, 3)


def variant(*, model: str, dedup: str, seed: int) -> Experiment:
    """One run; the tokenizer is the same for all, so that only one thing differs at a time."""
    return Experiment(
        name=f"{model}, {dedup}, seed={seed}",
        tokenizer=BPE(vocab_size=2_048, dataset=TRAIN["as found"]),
        mixture=Mixture(parts=(Part(dataset=TRAIN[dedup], weight=1.0),)),
        model=MODELS[model],
        training=Training(
            n_tokens=196_608,
            batch_tokens=1_024,
            optimizer=AdamW(lr=2e-3, weight_decay=0.1),
            schedule=WSD(warmup_steps=24, decay_steps=80),
            seed=seed,
            precision="bf16",
            n_checkpoints=4,
        ),
        evaluations=(
            BitsPerByte(dataset=HELD_OUT, max_documents=32, max_bytes=1_500),
            NextLine(dataset=HELD_OUT, n_items=80, context_bytes=256, seed=0),
            CompleteFunction(
                dataset=HELD_OUT,
                n_items=32,
                max_new_tokens=10,
                seed=0,
                shown="all but the end",
                n_samples=2,
                temperature=0.5,
            ),
        ),
    )


def experiments() -> list[Experiment]:
    """Every model with every treatment and every seed."""
    return [variant(model=m, dedup=d, seed=s) for m in MODELS for d in DEDUP for s in SEEDS]


def comparisons() -> list[Comparison]:
    """One thing changed at a time."""
    models = [Comparison(baseline=f"gpt2, {d}", variant=f"llama, {d}") for d in DEDUP]
    return models + [Comparison(baseline=f"{m}, as found", variant=f"{m}, deduplicated") for m in MODELS]
