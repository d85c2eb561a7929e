from __future__ import annotations

import copy
import math
import sys
from typing import Any

import pytest
import torch
from torch import nn

from modelfactory.errors import SpecError
from modelfactory.models import GPT2, Llama
from modelfactory.train import SOAP, AdamW, AdamW8bit, Muon
from modelfactory.train.parameter_groups import hidden_matrices, stacked_rows

ADAMW = AdamW(lr=1e-2, weight_decay=0.1)
MUON = Muon(lr=0.02, adamw_lr=1e-3, weight_decay=0.1)
SOAP_ = SOAP(lr=3e-3, weight_decay=0.1, precondition_steps=2)
LLAMA = Llama(n_layers=2, d_model=32, n_heads=4, max_seq_len=16, tied=False)
GPT = GPT2(n_layers=1, d_model=32, n_heads=2, max_seq_len=16)
VOCAB_SIZE = 97


class Own(nn.Module):
    """A user's architecture: no `vocab_size`, a tied head, a stack of experts, a matrix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.positions = nn.Embedding(10, 8)
        self.up = nn.Linear(8, 24)
        self.down = nn.Linear(24, 8, bias=False)
        self.experts = nn.Parameter(torch.ones(3, 8, 8))
        self.mixing = nn.Parameter(torch.ones(4, 4))
        self.gain = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(8, 50, bias=False)
        self.tied = nn.Linear(8, 50, bias=False)
        self.tied.weight = self.embedding.weight
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.other.weight = self.one.weight


def names_of(module: nn.Module, optimizer: torch.optim.Optimizer, *, is_muon: bool) -> set[str]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = [group for group in optimizer.param_groups if ("ns_steps" in group) is is_muon]
    return {names[id(parameter)] for group in groups for parameter in group["params"]}


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt2"])
@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 32, 96])
def test_muon_takes_the_matrices_inside_the_blocks(model: Any, vocab_size: int) -> None:
    """Also where the vocabulary is as large as a layer is wide."""
    module = model.build(vocab_size, seed=0)
    optimizer = MUON.build(module)
    parameters = dict(module.named_parameters())
    wanted = {name for name, p in parameters.items() if name.startswith("blocks.") and p.ndim == 2}
    assert names_of(module, optimizer, is_muon=True) == wanted
    assert names_of(module, optimizer, is_muon=False) == parameters.keys() - wanted


@pytest.mark.parametrize(("spec", "least", "most"), [(ADAMW, 0.0, 2e-5), (MUON, 1e-3, 1e-1)])
def test_muon_alone_magnifies_the_last_bits_of_a_gradient(spec: Any, least: float, most: float) -> None:
    """Its iterations are in bfloat16: what the documentation says of splits of a batch rests on it."""
    moved = []
    for share in (0.0, 1e-5):
        layer = nn.Linear(64, 64, bias=False)
        before = nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0)).detach().clone()
        noise = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(1))
        layer.weight.grad = noise[0] + share * noise[1]
        module = nn.ModuleDict({"embedding": nn.Embedding(4, 64), "layer": layer})
        spec.build(module).step()
        moved.append(layer.weight.detach() - before)
    apart = float((moved[0] - moved[1]).norm() / moved[0].norm())
    assert least <= apart <= most


def test_muon_takes_no_tied_head_position_stack_vector_or_shared_matrix() -> None:
    module = Own()
    optimizer = MUON.build(module)
    assert names_of(module, optimizer, is_muon=True) == {"up.weight", "down.weight"}
    assert len(names_of(module, optimizer, is_muon=False)) == len(list(module.parameters())) - 2


def test_a_module_may_say_which_matrices() -> None:
    module: Any = Own()
    module.hidden_matrices = lambda: ["up.weight", "mixing"]
    assert hidden_matrices(module) == {"up.weight", "mixing"}


def test_a_model_without_hidden_matrices_is_refused() -> None:
    bare = nn.ModuleDict({"embedding": nn.Embedding(50, 8), "head": nn.Linear(8, 50)})
    with pytest.raises(SpecError, match=r"found 'no hidden matrix', .* Use AdamW"):
        MUON.build(bare)
    with pytest.raises(SpecError, match="neither `vocab_size` nor an "):
        MUON.build(nn.Linear(8, 8))


def newton_schulz(matrix: torch.Tensor, n_steps: int) -> torch.Tensor:
    """In float64, of the larger Gram matrix where torch takes the smaller: X(aI + bX'X + c(X'X)^2)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / matrix.norm()
    for _ in range(n_steps):
        gram = x.T @ x
        x = x @ (a * torch.eye(len(gram), dtype=x.dtype) + b * gram + c * gram @ gram)
    return x


@pytest.mark.parametrize("adjustment", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (16, 16)])
def test_muon_is_the_formula(adjustment: Any, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    module = nn.ModuleDict({"embedding": nn.Embedding(50, 8), "hidden": nn.Linear(shape[1], shape[0])})
    spec = Muon(lr=0.1, adamw_lr=0.01, weight_decay=0.2, momentum=0.9, lr_adjustment=adjustment)
    optimizer = spec.build(module)
    weight = module["hidden"].weight
    wanted, average = weight.detach().double(), torch.zeros(shape, dtype=torch.float64)
    rows, columns = shape
    factor = math.sqrt(max(1, rows / columns))
    if adjustment == "match_rms_adamw":
        factor = 0.2 * math.sqrt(max(rows, columns))
    for _ in range(3):
        gradient = torch.randn(shape, generator=generator)
        weight.grad = gradient.clone()
        optimizer.step()
        average = 0.9 * average + 0.1 * gradient.double()
        ahead = 0.1 * gradient.double() + 0.9 * average
        step = newton_schulz(ahead, 5)
        wanted = wanted * (1 - 0.1 * 0.2) - 0.1 * factor * step
    # torch iterates in bfloat16: the whole step is off by a few of its relative errors, 2**-8
    moved = (weight.detach().double() - wanted).norm() / (0.1 * factor * math.sqrt(min(shape)))
    assert moved < 0.06


@pytest.mark.parametrize("adjustment", ["original", "match_rms_adamw"])
def test_muon_takes_matrices_in_one_parameter_each_by_itself(adjustment: Any) -> None:
    """To the bit as if they were parameters of their own."""
    spec = Muon(lr=0.1, adamw_lr=0.01, weight_decay=0.2, lr_adjustment=adjustment)
    together: Any = nn.ModuleDict({"embedding": nn.Embedding(50, 8), "hidden": nn.Linear(8, 22, bias=False)})
    together.stacked_rows = lambda: {"hidden.weight": (8, 4, 10)}
    apart = nn.ModuleDict({"embedding": nn.Embedding(50, 8)})
    whole, parts = together["hidden"].weight, []
    for n, part in enumerate(whole.detach().split((8, 4, 10))):
        apart[f"hidden{n}"] = nn.Linear(8, len(part), bias=False)
        apart[f"hidden{n}"].weight.data.copy_(part)
        parts.append(apart[f"hidden{n}"].weight)
    optimizers = spec.build(together), spec.build(apart)
    for seed in range(3):
        gradient = torch.randn(22, 8, generator=torch.Generator().manual_seed(seed))
        whole.grad = gradient.clone()
        for part, own in zip(parts, gradient.split((8, 4, 10)), strict=True):
            part.grad = own.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(whole, torch.cat(parts))
    assert list(optimizers[0].state[whole]) == ["momentum_buffer"]


@pytest.mark.parametrize(("model", "stacked"), [(LLAMA, (32, 32, 32)), (GPT, (32, 32, 32))])
def test_the_decoder_says_what_lies_in_one_parameter(model: Any, stacked: tuple[int, ...]) -> None:
    rows = stacked_rows(model.build(VOCAB_SIZE, seed=0))
    assert rows["blocks.0.mixer.qkv.weight"] == stacked
    gate_up = {name: found for name, found in rows.items() if name.endswith("gate_up.weight")}
    assert len(rows) == model.n_layers + len(gate_up)
    assert len(gate_up) == (model.n_layers if model is LLAMA else 0)
    assert all(one == other for one, other in gate_up.values())


@pytest.mark.parametrize("rows", [{"up.weight": (8, 8)}, {"up.weight": ()}, {"upp.weight": (24,)}])
def test_rows_that_are_not_there_are_refused(rows: dict[str, tuple[int, ...]]) -> None:
    module: Any = Own()
    module.stacked_rows = lambda: rows
    with pytest.raises(SpecError, match=r"Own.stacked_rows\['upp?.weight'\]: found"):
        MUON.build(module)


@pytest.mark.parametrize("spec", [ADAMW, MUON, SOAP_], ids=["adamw", "muon", "soap"])
def test_only_matrices_decay(spec: Any) -> None:
    for group in spec.build(LLAMA.build(VOCAB_SIZE, seed=0)).param_groups:
        assert {p.ndim for p in group["params"]} == ({2} if group["weight_decay"] else {1})


def test_adamw_is_torchs() -> None:
    """Against torch's unfused form with two groups, over steps with real gradients."""
    ours, theirs = LLAMA.build(VOCAB_SIZE, seed=0), LLAMA.build(VOCAB_SIZE, seed=0)
    matrices = [p for p in theirs.parameters() if p.ndim == 2]
    vectors = [p for p in theirs.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizers = (
        ADAMW.build(ours),
        torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, foreach=False),
    )
    for _ in range(5):
        for module, optimizer in zip((ours, theirs), optimizers, strict=True):
            descend(module, optimizer)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def descend(module: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    tokens = torch.randint(VOCAB_SIZE, (4, 17), generator=torch.Generator().manual_seed(2))
    loss: Any = module.loss_sum(tokens[:, :-1], tokens[:, 1:], torch.ones(4, 16, dtype=torch.bool)) / 64
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


@pytest.mark.parametrize("spec", [ADAMW, MUON, SOAP_], ids=["adamw", "muon", "soap"])
def test_it_descends_and_moves_everything(spec: Any) -> None:
    module = LLAMA.build(VOCAB_SIZE, seed=0)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    optimizer = spec.build(module)
    losses = [descend(module, optimizer) for _ in range(12)]
    assert losses[-1] < 0.9 * losses[0]
    assert losses == sorted(losses, reverse=True)
    assert not any(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_both_parts_of_muon_follow_the_schedule() -> None:
    module = LLAMA.build(VOCAB_SIZE, seed=0)
    groups = MUON.build(module).param_groups
    assert [group["lr_scale"] for group in groups] == pytest.approx([1.0, 0.05, 0.05])
    assert [group["lr"] for group in groups] == pytest.approx([0.02, 1e-3, 1e-3])


@pytest.mark.parametrize(
    ("spec", "scales"),
    [
        (ADAMW, [0.25, 1.0, 1.0]),
        (SOAP_, [0.25, 1.0, 1.0]),
        (MUON, [1.0, 0.05, 0.05]),
        (
            Muon(lr=0.02, adamw_lr=1e-3, weight_decay=0.1, lr_adjustment="match_rms_adamw"),
            [0.5, 0.05, 0.05],
        ),
    ],
    ids=["adamw", "soap", "muon", "muon like adamw"],
)
def test_a_models_own_scales_are_honoured_and_leave_the_decay(spec: Any, scales: list[float]) -> None:
    module: Any = LLAMA.build(VOCAB_SIZE, seed=0)
    hidden = hidden_matrices(module)
    module.lr_scales = lambda: dict.fromkeys(hidden, 0.25)
    groups = spec.build(module).param_groups
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    of_hidden = [g for g in groups if {names[id(p)] for p in g["params"]} == hidden]
    assert len(of_hidden) == 1
    others = [g for g in groups if g is not of_hidden[0]]
    others.sort(key=lambda group: -group["weight_decay"])
    assert [g["lr_scale"] for g in (*of_hidden, *others)] == pytest.approx(scales)
    share = scales[1]
    decays = [group["lr"] * group["weight_decay"] for group in (*of_hidden, *others)]
    assert decays == pytest.approx([spec.lr * 0.1, spec.lr * share * 0.1, 0.0])


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({"blocks.0.mixer.qkv.wait": 0.5}, r"lr_scales\['blocks.0.mixer.qkv.wait'\]: found 'no parameter'"),
        ({"embedding.weight": 0.0}, r"lr_scales\['embedding.weight'\]: found 0.0, wanted a number above 0"),
    ],
)
def test_scales_that_cannot_be_are_refused(scales: dict[str, float], message: str) -> None:
    module: Any = LLAMA.build(VOCAB_SIZE, seed=0)
    module.lr_scales = lambda: scales
    with pytest.raises(SpecError, match=message):
        ADAMW.build(module)


def test_together_takes_over_a_state_dict() -> None:
    one, other = LLAMA.build(VOCAB_SIZE, seed=0), LLAMA.build(VOCAB_SIZE, seed=0)
    first, second = MUON.build(one), MUON.build(other)
    descend(one, first)
    other.load_state_dict(one.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    descend(one, first)
    descend(other, second)
    for left, right in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(left, right)


def test_soap_turns_adam_into_the_eigenbasis() -> None:
    """The second step on one matrix, in float64; the first one only sets up the bases."""
    generator = torch.Generator().manual_seed(3)
    module = nn.ModuleDict({"embedding": nn.Embedding(50, 8), "hidden": nn.Linear(6, 4, bias=False)})
    module = module.double()
    optimizer = SOAP(lr=0.1, weight_decay=0.0).build(module)
    weight = module["hidden"].weight
    before = weight.detach().clone()
    gradients = [torch.randn(4, 6, generator=generator, dtype=torch.float64) for _ in range(2)]
    weight.grad = gradients[0].clone()
    optimizer.step()
    assert torch.equal(weight, before)
    weight.grad = gradients[1].clone()
    optimizer.step()
    left = torch.linalg.eigh(gradients[0] @ gradients[0].T)[1]
    right = torch.linalg.eigh(gradients[0].T @ gradients[0])[1]
    turned = left.T @ gradients[1] @ right
    step = left.T @ (before - weight.detach()) / 0.1 @ right
    # The first step of Adam is the sign. Directions 0 and 1 on the right have no eigenvalue of their own.
    torch.testing.assert_close(step[:, 2:], turned.sign()[:, 2:], atol=1e-4, rtol=0)
    assert step.square().sum().item() == pytest.approx(4 * 6, rel=1e-4)


def test_soap_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    monkeypatch.delitem(sys.modules, "modelfactory.train.exact_soap", raising=False)
    with pytest.raises(SpecError, match=r"pip install 'modelfactory\[optimizers\]'"):
        SOAP_.build(LLAMA.build(VOCAB_SIZE, seed=0))


def test_eight_bits_need_a_gpu() -> None:
    with pytest.raises(
        SpecError, match="AdamW8bit: found 'parameters on cpu', wanted all parameters on a GPU"
    ):
        AdamW8bit(lr=1e-3, weight_decay=0.1).build(LLAMA.build(VOCAB_SIZE, seed=0))


def test_eight_bits_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(SpecError, match=r"pip install 'modelfactory\[gpu\]'"):
        AdamW8bit(lr=1e-3, weight_decay=0.1).build(nn.Module())  # no parameter is elsewhere than on a GPU


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (Muon, {"lr": 0.0}, "Muon.lr: found 0.0"),
    (Muon, {"adamw_lr": -1.0}, "Muon.adamw_lr: found -1.0"),
    (Muon, {"momentum": 1.0}, "Muon.momentum: found 1.0"),
    (Muon, {"ns_steps": 0}, "Muon.ns_steps: found 0"),
    (Muon, {"weight_decay": -0.1}, "Muon.weight_decay: found -0.1"),
    (Muon, {"lr_adjustment": "none"}, "Muon.lr_adjustment: found 'none'"),
    (SOAP, {"precondition_steps": 0}, "SOAP.precondition_steps: found 0"),
    (SOAP, {"max_precondition_dim": 0}, "SOAP.max_precondition_dim: found 0"),
    (SOAP, {"beta1": 1.0}, "SOAP.beta1: found 1.0"),
    (AdamW8bit, {"block_size": 0}, "AdamW8bit.block_size: found 0"),
    (AdamW8bit, {"eps": 0.0}, "AdamW8bit.eps: found 0.0"),
]


@pytest.mark.parametrize(("kind", "fields", "message"), BAD)
def test_what_cannot_be_is_refused(kind: Any, fields: dict[str, Any], message: str) -> None:
    usual = {"lr": 1e-3, "weight_decay": 0.1} | ({"adamw_lr": 1e-3} if kind is Muon else {})
    with pytest.raises(SpecError, match=message):
        kind(**(usual | fields))
