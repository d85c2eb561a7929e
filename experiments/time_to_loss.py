"""How little training does a character model of Shakespeare need to reach nanoGPT's published loss?

nanoGPT's small recipe for CPUs (4 layers, 4 heads, width 128, context 64, 2,000 steps of AdamW on 12 rows)
reaches a validation loss of 1.88 nats a character: 2.712 bits a byte, for the text is ASCII. Here are that
recipe and others of the same size that train on fewer batches. The winner is the shortest that is no worse;
`benchmarks/time_to_loss.py` runs this file and says how long each took.
"""

from dataclasses import dataclass
from pathlib import Path

from modelfactory import Comparison, Experiment
from modelfactory.data import Dataset, Jsonl, Split
from modelfactory.evaluate import BitsPerByte
from modelfactory.models import GPT2, Decoder, Llama
from modelfactory.tokens import BPE, Mixture, Part
from modelfactory.train import WSD, AdamW, Cosine, Muon, Training

SHAKESPEARE = str(Path(__file__).parent / "data" / "shakespeare")
CONTEXT, BATCH_TOKENS = 64, 12 * 64


def passages(file: str, split: Split) -> Dataset:
    """One side of the split that nanoGPT makes."""
    source = Jsonl(root=SHAKESPEARE, pattern=file, text_field="text")
    return Dataset(name="shakespeare", sources=(source,), filters=(), dedup=(), split=split)


TRAIN = passages("train.jsonl", Split(part="train", held_out_share=0.0))
HELD_OUT = passages("held_out.jsonl", Split(part="held_out", held_out_share=1.0))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What differs."""

    model: Decoder
    n_steps: int
    optimizer: AdamW | Muon
    schedule: Cosine | WSD


GPT2_SIZE = GPT2(n_layers=4, d_model=128, n_heads=4, max_seq_len=CONTEXT, bias=False)
LLAMA_SIZE = Llama(n_layers=4, d_model=128, n_heads=4, max_seq_len=CONTEXT, tied=True)
MUON = Muon(lr=0.02, adamw_lr=5e-3, weight_decay=0.1)
RECIPES = {
    "nanoGPT": Recipe(
        model=GPT2_SIZE,
        n_steps=2_000,
        optimizer=AdamW(lr=1e-3, weight_decay=0.1, beta2=0.99),
        schedule=Cosine(warmup_steps=100, final_share=0.1),
    ),
    "AdamW, 800 steps": Recipe(
        model=LLAMA_SIZE,
        n_steps=800,
        optimizer=AdamW(lr=3e-3, weight_decay=0.1),
        schedule=WSD(warmup_steps=20, decay_steps=400),
    ),
    "Muon, 500 steps": Recipe(
        model=LLAMA_SIZE, n_steps=500, optimizer=MUON, schedule=WSD(warmup_steps=20, decay_steps=250)
    ),
    "Muon, 350 steps": Recipe(
        model=LLAMA_SIZE, n_steps=350, optimizer=MUON, schedule=WSD(warmup_steps=20, decay_steps=200)
    ),
}


def variant(*, recipe: str, seed: int) -> Experiment:
    """One run; a vocabulary of 256 bytes and one special token merges nothing, so a token is a character."""
    chosen = RECIPES[recipe]
    return Experiment(
        name=f"{recipe}, seed={seed}",
        tokenizer=BPE(vocab_size=257, dataset=TRAIN),
        mixture=Mixture(parts=(Part(dataset=TRAIN, weight=1.0),)),
        model=chosen.model,
        training=Training(
            n_tokens=chosen.n_steps * BATCH_TOKENS,
            batch_tokens=BATCH_TOKENS,
            optimizer=chosen.optimizer,
            schedule=chosen.schedule,
            seed=seed,
            precision="fp32",
            n_checkpoints=2,
        ),
        evaluations=(BitsPerByte(dataset=HELD_OUT, max_documents=100, max_bytes=4_000),),
    )


def experiments() -> list[Experiment]:
    """Every recipe, twice."""
    return [variant(recipe=recipe, seed=seed) for recipe in RECIPES for seed in (1, 2)]


def comparisons() -> list[Comparison]:
    """Each shorter recipe with nanoGPT's."""
    return [Comparison(baseline="nanoGPT", variant=recipe) for recipe in RECIPES if recipe != "nanoGPT"]
