from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modelfactory.models import GPT2, Llama
from modelfactory.models.lora import Adapted, LoRA
from modelfactory.stage import Parallel
from modelfactory.tokens import Batch
from modelfactory.train import AdamW, Muon
from modelfactory.train.eight_bit import AdamW8bit
from modelfactory.train.learner import Learner
from modelfactory.train.memory import memory_bytes
from modelfactory.train.optimizer_memory import optimizer_bytes
from modelfactory.train.optimizer_state import flat_state
from modelfactory.train.soap import SOAP
from modelfactory.train.steps import gradient
from tests.models.test_models_counts import EVERY
from tests.train.material import most_grown, spec, training

VOCAB_SIZE = 4_096
LLAMA = Llama(n_layers=4, d_model=64, n_heads=4, max_seq_len=128)
GPT = GPT2(n_layers=4, d_model=64, n_heads=4, max_seq_len=128)
RATE = {"lr": 1e-3, "weight_decay": 0.1}
OPTIMIZERS = {
    "AdamW": AdamW(**RATE),
    "Muon": Muon(**RATE, adamw_lr=1e-3),
    "SOAP": SOAP(**RATE, precondition_steps=1),
}


def held_at_peak(model: Any, precision: str, checkpointing: Any, *, n_parts: int) -> int:
    """Return the most memory held by tensors in the second step, by torch's own account."""
    segment = spec(model=model, precision=precision, batch_tokens=16 * 128, n_tokens=32 * 2_048)
    learner = Learner(segment, VOCAB_SIZE, is_compiled=False, checkpointing=checkpointing)
    random = np.random.default_rng(0)
    batch = Batch(
        step=1,
        tokens=random.integers(VOCAB_SIZE, size=(16, 129), dtype=np.int32),
        valid=np.ones((16, 128), dtype=bool),
        sequence_ids=np.zeros((16, 3), dtype=np.int64),
    )

    def step() -> None:
        gradient(learner, batch, seed=0, micro_batch_tokens=16 * 128 // n_parts)
        learner.optimizer.step()
        learner.optimizer.zero_grad(set_to_none=True)

    step()
    held = 12 * sum(p.numel() for p in learner.module.parameters())
    return held + most_grown(step)


@pytest.mark.parametrize(
    ("checkpointing", "n_parts"), [("none", 1), ("none", 2), ("selective", 1), ("full", 1)]
)
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt2"])
def test_the_estimate_is_what_tensors_hold_at_the_peak(
    model: Any, precision: Any, checkpointing: Any, n_parts: int
) -> None:
    estimate = memory_bytes(
        model,
        VOCAB_SIZE,
        spec(model=model, precision=precision, batch_tokens=16 * 128, n_tokens=32 * 2_048),
        micro_batch_tokens=16 * 128 // n_parts,
        checkpointing=checkpointing,
    )
    held = held_at_peak(model, precision, checkpointing, n_parts=n_parts)
    assert estimate.total == pytest.approx(held, rel=0.05)


def test_the_estimate_is_the_growth_of_a_process() -> None:
    """Resident memory of a process that trains, with an allocator that gives back what is freed."""
    benchmark = Path(__file__).parents[2] / "benchmarks" / "memory.py"
    command = [sys.executable, str(benchmark), "--json", "--cases", "gpt2 4x128 fp32"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    (found,) = json.loads(answer.stdout.splitlines()[-1])["cases"]
    assert found["measured"] > 200e6
    assert found["ratio"] == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("family", EVERY)
def test_optimizer_state_is_what_the_formula_says(name: str, family: str) -> None:
    model, optimizer = EVERY[family], OPTIMIZERS[name]
    module = model.build(97, seed=0)
    built = optimizer.build(module)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    built.step()
    held = sum(value.nbytes for value in flat_state(built, module).values() if value.ndim > 0)
    assert optimizer_bytes(optimizer, model, 97) == pytest.approx(held, rel=0.02)


def test_states_of_eight_bits_and_of_ones_own() -> None:
    class Own:
        lr = 1.0

        def state_bytes(self, model: Any, vocab_size: int) -> int:
            return 3 * int(model.n_parameters(vocab_size))

    n_parameters = LLAMA.n_parameters(97)
    assert optimizer_bytes(AdamW8bit(**RATE), LLAMA, 97) == int(n_parameters * (2 + 8 / 256))
    assert optimizer_bytes(Own(), LLAMA, 97) == 3 * n_parameters  # type: ignore[arg-type]


def test_adapters_need_no_gradients_and_states_of_what_stays_as_it_is() -> None:
    adapted = Adapted(base=LLAMA, lora=LoRA(rank=2, alpha=2.0))
    whole, thin = (memory_bytes(model, 97, training()) for model in (LLAMA, adapted))
    assert thin.parameters > whole.parameters
    assert thin.optimizer == 2 * thin.gradients == 8 * adapted.n_trainable(97)
    assert thin.total < whole.total


def test_processes_divide_what_they_hold() -> None:
    alone = memory_bytes(LLAMA, 97, training(batch_tokens=8 * 128, n_tokens=10_240))
    divided = memory_bytes(
        LLAMA, 97, training(batch_tokens=8 * 128, n_tokens=10_240), parallel=Parallel(shard=2, context=2)
    )
    assert divided.optimizer == alone.optimizer // 2
    assert divided.activations == pytest.approx(alone.activations / 4, rel=0.01)


def test_what_no_process_can_divide_counts_by_share() -> None:
    """Ten heads and five of keys on two: training refuses it, which is not for the estimate to say."""
    odd = Llama(n_layers=2, d_model=80, n_heads=10, n_kv_heads=5, max_seq_len=128)
    alone, divided = (
        memory_bytes(odd, 97, training(), parallel=parallel) for parallel in (None, Parallel(tensor=2))
    )
    assert alone.parameters / 2 < divided.parameters < alone.parameters
    assert divided.activations < alone.activations


def test_tensor_leaves_the_vocabulary_and_the_stream_whole() -> None:
    alone, divided = (
        memory_bytes(LLAMA, 50_257, training(precision="fp32"), parallel=parallel)
        for parallel in (None, Parallel(tensor=4))
    )
    assert divided.parameters > 4 * 2 * 50_257 * 64
    within = sum(layer.n_parameters(64) for layer in (LLAMA.blocks[0].mixer, LLAMA.blocks[0].feed_forward))
    assert alone.parameters - divided.parameters == 4 * 4 * within * 3 // 4
    assert divided.parameters < divided.gathered + divided.parameters < divided.total
    streams = 4 * 64 * (2 * 2 * 4 + 2) + 4 * 64 * 2 * 4  # two norms of a block keep two each; two inputs
    assert divided.activations > training().batch_tokens * streams
    assert divided.activations < alone.activations


def test_estimating_needs_no_torch() -> None:
    code = (
        "import sys; from modelfactory.models import GPT2; from modelfactory.train import *;"
        "from modelfactory.train.memory import memory_bytes;"
        "model = GPT2(n_layers=48, d_model=1600, n_heads=25, max_seq_len=1024);"
        "training = Training(n_tokens=2**30, batch_tokens=2**19, optimizer=AdamW(lr=1e-3, weight_decay=0.1),"
        " schedule=Cosine(warmup_steps=1), seed=0);"
        "assert memory_bytes(model, 50257, training).total > 25e9;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
