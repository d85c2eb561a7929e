"""A made-up study for tests: 4 variants x 3 seeds x 4 checkpoints x 3 tasks. No figure here was measured."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modelfactory.report import (
    Cost,
    DatasetDrops,
    Drop,
    EvaluationCurve,
    Fact,
    LossCurve,
    PlanNode,
    ReportData,
    Sample,
    SpecChange,
    SpecText,
    Variant,
)
from modelfactory.verdict import Measure, Outcomes, compare, estimate

NAMES = ("gpt2/dedup=none", "gpt2/dedup=exact", "llama/dedup=none", "llama/dedup=exact")
SEEDS = (0, 1, 2)
STEPS = (150, 300, 450, 600)
BATCH_TOKENS = 8_192
FLOPS_PER_TOKEN = 8.4e7
MEASURES = (
    Measure(
        task="bits_per_byte", metric="bits_per_byte", higher_is_better=False, margin=0.01, unit="bits/byte"
    ),
    Measure(task="next_line", metric="accuracy", higher_is_better=True, margin=0.02, unit="share"),
    Measure(task="complete_function", metric="parses", higher_is_better=True, margin=0.05, unit="share"),
)
GAIN = dict(zip(NAMES, (0.0, 0.002, 0.11, 0.115), strict=True))
HOSTILE = 'x = "</script><script>alert(1)</script>" & <b>bold</b>\x00\x1b[31m \udc80 \u202egnp.exe'


class Against(NamedTuple):
    baseline: str
    variant: str


def outcomes(seeds: tuple[int, ...] = SEEDS, steps: tuple[int, ...] = STEPS) -> Outcomes:
    random = np.random.default_rng(7)
    hardness = random.normal(0, 0.35, 160)
    n_bytes = random.integers(400, 9_000, 160)
    items = [f"document-{i}" for i in range(160)]
    tables = []
    for name in NAMES:
        for seed in seeds:
            luck = random.normal(0, 0.004)
            for step in steps:
                level = 2.6 - GAIN[name] + luck - 0.32 * np.log(step / 100)
                bits = level + hardness + random.normal(0, 0.02, 160)
                right = random.random(160) < 0.34 + 0.9 * GAIN[name] + 0.05 * np.log(step / 100)
                parses = random.random(160) < 0.1 + 0.04 * np.log(step / 100)
                for measure, values in zip(MEASURES, (bits, right, parses), strict=True):
                    tables.append(
                        Outcomes.of_checkpoint(
                            variant=name,
                            seed=seed,
                            step=step,
                            task=measure.task,
                            metric=measure.metric,
                            item_id=items,
                            cluster=items,
                            value=values.astype(float),
                            weight=n_bytes.astype(float) if measure is MEASURES[0] else None,
                        )
                    )
    return Outcomes.concatenate(tables)


COMPARISONS = tuple(Against(NAMES[0], name) for name in NAMES[1:])


def losses() -> tuple[LossCurve, ...]:
    random = np.random.default_rng(11)
    steps = np.arange(1, STEPS[-1] + 1)
    return tuple(
        LossCurve(
            variant=name,
            seed=seed,
            steps=tuple(steps.tolist()),
            n_tokens=tuple((steps * BATCH_TOKENS).tolist()),
            flops=tuple((steps * BATCH_TOKENS * FLOPS_PER_TOKEN).tolist()),
            loss=tuple(
                (
                    2.1
                    - GAIN[name]
                    + 6.2 * np.exp(-steps / 45)
                    + 0.9 * np.exp(-steps / 300)
                    + random.normal(0, 0.05, len(steps))
                ).tolist()
            ),
        )
        for name in NAMES
        for seed in SEEDS
    )


def evaluations(table: Outcomes) -> tuple[EvaluationCurve, ...]:
    curves = []
    for name in NAMES:
        for seed in SEEDS:
            for measure in MEASURES:
                own = (table.variant == name) & (table.seed == seed) & (table.task == measure.task)
                values = []
                for step in STEPS:
                    part = table.where(own & (table.step == step))
                    values.append(float(np.average(part.value, weights=part.weight)))
                curves.append(
                    EvaluationCurve(
                        variant=name,
                        seed=seed,
                        measure=measure,
                        steps=STEPS,
                        n_tokens=tuple(step * BATCH_TOKENS for step in STEPS),
                        flops=tuple(step * BATCH_TOKENS * FLOPS_PER_TOKEN for step in STEPS),
                        values=tuple(values),
                        chance=0.25 if measure is MEASURES[1] else None,
                    )
                )
    return tuple(curves)


def plan() -> tuple[tuple[PlanNode, ...], tuple[tuple[str, str], ...]]:
    nodes, edges = [PlanNode(id="held", kind="documents", label="held-out files", state="stored")], []
    for dedup in ("none", "exact"):
        for kind, label in (
            ("documents", f"stdlib, dedup={dedup}"),
            ("tokenizer", "BPE 4,096"),
            ("tokens", "shards"),
        ):
            nodes.append(PlanNode(id=f"{kind}-{dedup}", kind=kind, label=label, state="stored"))
        edges += [
            (f"documents-{dedup}", f"tokenizer-{dedup}"),
            (f"documents-{dedup}", f"tokens-{dedup}"),
            (f"tokenizer-{dedup}", f"tokens-{dedup}"),
        ]
    for name in NAMES:
        dedup = name.rsplit("=", 1)[1]
        state = "failed" if name == NAMES[3] else "stored"
        nodes.append(PlanNode(id=f"train-{name}", kind="train", label=name, state=state, count=12))
        blocked = "blocked" if state == "failed" else "to run"
        nodes.append(PlanNode(id=f"evaluate-{name}", kind="evaluate", label=name, state=blocked, count=36))
        edges += [
            (f"tokens-{dedup}", f"train-{name}"),
            (f"train-{name}", f"evaluate-{name}"),
            ("held", f"evaluate-{name}"),
        ]
    return tuple(nodes), tuple(edges)


def sample_report() -> ReportData:
    table = outcomes()
    nodes, edges = plan()
    return ReportData(
        title="first_question (made-up test data)",
        question="Does a Llama-like decoder learn Python faster than a GPT-2-like one of equal size,\n"
        "and does exact deduplication help either?",
        generated="1 February 2026, 12:00 UTC",
        findings=tuple(compare(table, COMPARISONS, measures=MEASURES)),
        estimates=tuple(estimate(table, measures=MEASURES)),
        variants=tuple(
            Variant(
                name=name,
                n_parameters=13_812_480 + 1_280 * i,
                n_tokens=STEPS[-1] * BATCH_TOKENS,
                flops=STEPS[-1] * BATCH_TOKENS * FLOPS_PER_TOKEN,
                seeds=SEEDS,
            )
            for i, name in enumerate(NAMES)
        ),
        losses=losses(),
        evaluations=evaluations(table),
        datasets=(
            DatasetDrops(
                name="standard library, exact deduplication",
                n_documents=1_612,
                n_bytes=21_480_120,
                drops=(
                    Drop(
                        reason="shorter than 64 bytes",
                        n_documents=83,
                        n_bytes=1_204,
                        samples=(
                            Sample(path="email/mime/__init__.py", text=""),
                            Sample(path="odd.py", text=HOSTILE),
                        ),
                    ),
                    Drop(
                        reason="duplicate of idlelib/pyparse.py",
                        n_documents=7,
                        n_bytes=52_004,
                        samples=(Sample(path="a" * 90 + ".py", text="def f():\n\treturn 1\n" * 9),),
                    ),
                ),
            ),
            DatasetDrops(name="held out", n_documents=160, n_bytes=2_010_330, drops=()),
        ),
        nodes=nodes,
        edges=edges,
        specs=tuple(
            SpecText(
                name=f"{name}/seed={seed}",
                json=f'{{"name":"{name}","training":{{"seed":{seed},"lr":0.001}}}}',
            )
            for name in NAMES
            for seed in SEEDS
        ),
        changes=(
            SpecChange(
                baseline=NAMES[0],
                variant=NAMES[1],
                path="mixture.parts.0.dataset.dedup",
                before="[]",
                after='[{"$": "ExactDedup"}]',
            ),
            SpecChange(
                baseline=NAMES[0], variant=NAMES[2], path="model.norm", before='"layer"', after='"rms"'
            ),
            SpecChange(
                baseline=NAMES[0],
                variant=NAMES[2],
                path="model.feed_forward.d_ff",
                before="1536",
                after="1024",
            ),
        ),
        versions=(
            Fact(name="Python", value="3.11.7"),
            Fact(name="torch", value="2.13.0"),
            Fact(name="modelfactory", value="0.1.0"),
        ),
        commands=(
            "factory run experiments/first_question.py",
            "factory report experiments/first_question.py -o report.html",
        ),
        cost=Cost(seconds=5_203.0, flops=4.95e15, n_bytes=912_404_000),
        facts=(
            Fact(
                name="tokenizer: byte-pair encoding of 4,096 on the standard library",
                value="4,096 asked for, 4,096 reached",
            ),
            Fact(name="Bytes per token", value="3.61"),
        ),
        problems=("1 of 12 runs failed: llama/dedup=exact, seed 2 (made up, to show how it looks).",),
    )
