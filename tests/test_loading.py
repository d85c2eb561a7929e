"""From a file to a study, or to all of its faults."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from modelfactory.errors import InvalidInput, InvalidInputs
from modelfactory.loading import flattened, load_study

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GOOD = '''\
"""Is it a question?"""

from modelfactory import Comparison, Experiment
from modelfactory.data import Dataset, Files, Split
from modelfactory.evaluate import BitsPerByte
from modelfactory.models import GPT2
from modelfactory.tokens import BPE, Mixture, Part
from modelfactory.train import AdamW, Cosine, Training

SOURCE = Files(root=".", pattern="*.py", not_utf8="drop")
SIDES = {
    part: Dataset(
        name="a", sources=(SOURCE,), filters=(), dedup=(), split=Split(part=part, held_out_share=0.5)
    )
    for part in ("train", "held_out")
}


def variant(name: str, seed: int) -> Experiment:
    return Experiment(
        name=f"{name}/seed={seed}",
        tokenizer=BPE(vocab_size=300, dataset=SIDES["train"]),
        mixture=Mixture(parts=(Part(dataset=SIDES["train"], weight=1.0),)),
        model=GPT2(n_layers=1, d_model=8 if name == "small" else 16, n_heads=2, max_seq_len=8),
        training=Training(
            n_tokens=64,
            batch_tokens=16,
            optimizer=AdamW(lr=1e-3, weight_decay=0.1),
            schedule=Cosine(warmup_steps=1),
            seed=seed,
        ),
        evaluations=(BitsPerByte(dataset=SIDES["held_out"], max_documents=1, max_bytes=10),),
    )


def experiments() -> list[Experiment]:
    return [variant(name, seed) for name in ("small", "large") for seed in (1, 2)]
'''


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Return what writes a study with replaced pieces; modules of the test are forgotten after it."""
    before, path = set(sys.modules), list(sys.path)

    def written(*edits: tuple[str, str], name: str = "a_study.py", text: str = GOOD) -> Path:
        for old, new in edits:
            assert text.count(old) == 1, (old, text.count(old))
            text = text.replace(old, new)
        file = tmp_path / name
        file.write_text(text)
        return file

    yield written
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def faults(file: Path) -> list[InvalidInput]:
    with pytest.raises(InvalidInput) as caught:
        load_study(file)
    return list(flattened(caught.value))


def test_a_good_file(write: Callable[..., Path]) -> None:
    file = write()
    study = load_study(file)
    assert study.question == "Is it a question?"
    assert study.file == file.resolve()
    assert [e.variant for e in study.experiments] == ["small", "small", "large", "large"]
    assert [(c.baseline, c.variant) for c in study.comparisons] == [("small", "large")]


def test_an_edited_file_is_read_anew(write: Callable[..., Path]) -> None:
    load_study(write())
    assert load_study(write(("Is it a question?", "And now?"))).question == "And now?"


def test_all_faults_at_once(write: Callable[..., Path]) -> None:
    found = faults(write(
        ("lr=1e-3", "lr=-1.0"),
        ("vocab_size=300", "vocab_size=3, special=()"),
        ("weight=1.0", "weight=0.0"),
        ("Cosine(warmup_steps=1)", "Cosine(warmup_steps=1, warmup=1)"),
        ("batch_tokens=16", "batch_tokens=12"),
    ))  # fmt: skip
    told = "\n".join(map(str, found))
    for words in ("AdamW.lr", "BPE.vocab_size", "'special'", "Part.weight", "'warmup'", "batch_tokens"):
        assert words in told
    assert len(found) == len({str(fault) for fault in found})
    assert all(fault.found and fault.wanted for fault in found)


def test_values_of_a_wrong_type_do_not_end_the_search(write: Callable[..., Path]) -> None:
    edited = (
        "else 16, n_heads=2, max_seq_len=8),",
        "else 16, n_heads=2, max_seq_len=8) if seed == 1 else GPT2,",
    )
    schedule = ("schedule=Cosine(warmup_steps=1)", "schedule=Cosine(warmup_steps=1) if seed == 2 else GPT2")
    with pytest.raises(InvalidInputs) as caught:
        load_study(write(edited, schedule))
    told = sorted({str(error) for error in caught.value.errors})
    assert [text.count("Experiment.model") for text in told] == [1, 0]
    assert "wanted an Architecture, which has build" in told[0]
    assert "Call it: GPT2(...)" in told[0]
    assert "wanted a Schedule, which has lr_share, min_steps" in told[1]


def test_a_missing_field(write: Callable[..., Path]) -> None:
    (fault,) = faults(write(("Cosine(warmup_steps=1)", "Cosine()")))
    assert (fault.found, fault.remedy) == ("no warmup_steps", "Give warmup_steps.")


def test_an_unknown_field_has_its_line_and_the_closest_name(write: Callable[..., Path]) -> None:
    (fault,) = faults(write(("batch_tokens=16,", "batch_tokens=16, grad_clp=1.0,")))
    assert fault.place.endswith("a_study.py:27: Training")
    assert (fault.found, fault.remedy) == ("an unknown field 'grad_clp'", "Did you mean 'grad_clip'?")


@pytest.mark.parametrize(
    ("edit", "place", "found"),
    [
        (("def experiments()", "def trials()"), "a_study.py", "no function `experiments`"),
        (
            ("return [variant(name, seed) for", "return [] and [variant(name, seed) for"),
            "experiments()",
            "[]",
        ),
        (("return [variant(name, seed) for", "return [name for"), "experiments()", "['small'"),
        (("seed in (1, 2)]", "seed in (1, 2) if 1 / 0]"), "a_study.py:37", "ZeroDivisionError"),
        (("from modelfactory.train", "from modelfactory.trane"), "a_study.py:8", "ModuleNotFoundError"),
        (("def experiments()", "def experiments("), "a_study.py:36", "SyntaxError"),
        (("SOURCE =", "raise SystemExit(0)\nSOURCE ="), "a_study.py:10", "SystemExit"),
        (("n_layers=1", "n_layers='1'"), "GPT2.n_layers", "'1'"),
        (("seed in (1, 2)", "seed in (1, 1)"), "experiment 'small/seed=1'", "2 experiments of this name"),
    ],
)
def test_single_faults(write: Callable[..., Path], edit: tuple[str, str], place: str, found: str) -> None:
    told = faults(write(edit))
    assert any(place in fault.place and found in fault.found for fault in told), told


def test_a_comparison_of_nobody(write: Callable[..., Path]) -> None:
    text = GOOD + '\n\ndef comparisons():\n    return [Comparison(baseline="small", variant="larger")]\n'
    (fault,) = faults(write(text=text))
    assert fault.place.endswith("a_study.py:40: comparisons()[0].variant")
    assert fault.remedy == "Did you mean 'large'?"


@pytest.mark.parametrize("name", ["json.py", "torch.py", "two words.py", "2nd.py", "modelfactory.py"])
def test_a_name_that_hides_another_module(write: Callable[..., Path], name: str) -> None:
    (fault,) = faults(write(name=name))
    assert fault.remedy == "Rename the file."


def test_no_file_no_text(tmp_path: Path) -> None:
    (tmp_path / "question.py").write_text(GOOD)
    (fault,) = faults(tmp_path / "qestion.py")
    assert fault.remedy == "Did you mean 'question.py'?"
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    (fault,) = faults(tmp_path / "latin.py")
    assert "utf-8" in fault.found
    (fault,) = faults(tmp_path)
    assert "directory" in fault.found


def test_one_fault_reads_as_one(write: Callable[..., Path]) -> None:
    with pytest.raises(InvalidInputs) as caught:
        load_study(write(("lr=1e-3", "lr=-1.0")))
    assert "a_study.py:28: AdamW.lr (in all 4 experiments): found -1.0, wanted" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_is_left_on_the_path_after_a_fault(write: Callable[..., Path]) -> None:
    file = write(("lr=1e-3", "lr=-1.0"))
    faults(file)
    assert "a_study" not in sys.modules or sys.modules["a_study"].__file__ == str(file)


def places(file: Path) -> list[str]:
    return [fault.place.removeprefix(f"{file.parent}/") for fault in faults(file)]


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (("lr=1e-3", "lr=-1.0"), "a_study.py:28: AdamW.lr (in all 4 experiments)"),
        (
            ("seed=seed,\n", "seed=-seed,\n"),
            "a_study.py:30: Training.seed (in 2 of 4 experiments: small/seed=1, large/seed=1)",
        ),
        (('d_model=8 if name == "small" else 16', "d_model='x'"), "a_study.py:24: GPT2.d_model"),
        (('pattern="*.py"', 'pattern=""'), "a_study.py:10: Files.pattern (in all 4 experiments)"),
        (("filters=()", "filters=[]"), "a_study.py:13: Dataset.filters"),
        (
            ("max_bytes=10),),", "max_bytes=10),) and [],"),
            "a_study.py:32: Experiment.evaluations (in all 4 experiments)",
        ),
        (("seed in (1, 2)", "seed in (1, 1)"), "a_study.py:36: experiment 'large/seed=1'"),
        (("filters=()", "filters=(object(),)"), "a_study.py:13: Dataset.filters[0]"),
    ],
)
def test_a_value_has_its_file_and_line(write: Callable[..., Path], edit: tuple[str, str], place: str) -> None:
    assert places(write(edit))[0] == place


HELPER = """\
from modelfactory.train import AdamW, Cosine

OPTIMIZER = AdamW(
    weight_decay=0.1,
    lr=-1.0,
)


def schedule(**known: int) -> Cosine:
    return Cosine(**known)
"""


def test_a_value_in_a_module_beside_the_file(write: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "a_helper.py").write_text(HELPER)
    imported = (
        "from modelfactory import",
        "from a_helper import OPTIMIZER, schedule\nfrom modelfactory import",
    )
    file = write(
        imported,
        ("AdamW(lr=1e-3, weight_decay=0.1)", "OPTIMIZER"),
        ("Cosine(warmup_steps=1)", "schedule(warmup_steps=-1)"),
    )
    assert places(file) == [
        "a_helper.py:5: AdamW.lr (in all 4 experiments)",
        "a_helper.py:10: Cosine.warmup_steps (in all 4 experiments)",
    ]
    assert "a_helper" not in sys.modules  # it holds what was refused
    (tmp_path / "a_helper.py").write_text("x = (\n")
    assert places(file) == ["a_helper.py:1"]


def test_a_spec_of_the_author_is_placed_where_it_is_made(write: Callable[..., Path]) -> None:
    declared = """\
from dataclasses import dataclass
from modelfactory.spec import check_types

@dataclass(frozen=True, kw_only=True)
class Own:
    n: int
    def __post_init__(self):
        check_types(self)

OWN = Own(
    n="one"
)
SOURCE ="""
    assert places(write(("SOURCE =", declared))) == ["a_study.py:20: Own.n"]


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ([("batch_tokens=16", "batch_tokens=12")], ["training.batch_tokens (in all 4 experiments)"]),
        (
            [("batch_tokens=16", "batch_tokens=12 if name == 'small' else 16")],
            ["training.batch_tokens (in 2 of 4 experiments: small/seed=1, small/seed=2)"],
        ),
        (
            [
                ('name=f"{name}/seed={seed}"', 'name=f"{name}, seed={seed}"'),
                ("lr=1e-3", "lr=-1.0 * (seed == 1)"),
            ],
            [
                "AdamW.lr (in 2 of 4 experiments: 'small, seed=1', 'large, seed=1')",
                "AdamW.lr (in 2 of 4 experiments: 'small, seed=2', 'large, seed=2')",
            ],
        ),
        (
            [("seed in (1, 2)]", "seed in (1, 2, 3)]"), ("lr=1e-3", "lr=-1.0 * (seed < 3) + 0.1")],
            ["AdamW.lr (in 4 of 6 experiments: small/seed=1, small/seed=2, large/seed=1, ...)"],
        ),
        (
            [("batch_tokens=16", "batch_tokens=16 - 4 * (name == 'small') * (seed == 1)")],
            ["training.batch_tokens (in experiment 'small/seed=1')"],
        ),
        ([("seed in (1, 2)]", 'seed in (1,) if name == "small"]'), ("lr=1e-3", "lr=-1.0")], ["AdamW.lr"]),
        (
            [("batch_tokens=16", "batch_tokens=12"), ("seed in (1, 2)]", "seed in (1, 2)] + [1 / 0]")],
            ["training.batch_tokens (in 4 experiments: small/seed=1, small/seed=2, large/seed=1, ...)"],
        ),
    ],
)
def test_equal_faults_are_one(
    write: Callable[..., Path], edits: list[tuple[str, str]], told: list[str]
) -> None:
    assert [place.partition(": ")[2] for place in places(write(*edits))] == told


def test_a_misspelt_field_is_not_missing_as_well(write: Callable[..., Path]) -> None:
    file = write(("n_layers=1", "n_layer=0"), ("warmup_steps=1", "warmup_step=1, warmup=2"))
    told = [(fault.found, fault.remedy) for fault in faults(file)]
    assert told[0] == ("an unknown field 'n_layer'", "Did you mean 'n_layers'?")
    assert told[1] == ("an unknown field 'warmup_step'", "Did you mean 'warmup_steps'?")
    assert told[2][0] == "an unknown field 'warmup'"
    assert not any(found.startswith("no ") for found, _ in told)
    assert any(found == "0" for found, _ in told), "the value of the misspelt field is checked as well"


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (("import Dataset, Files", "import Datset, Fils"), [(4, "Dataset"), (4, "Files")]),
        (("from modelfactory.train", "from modelfactry.train"), [(8, "modelfactory")]),
        (("from modelfactory.train", "from modelfactory.trane"), [(8, "modelfactory.train")]),
        (("from modelfactory.train", "import jsn\nfrom modelfactory.train"), [(8, "json")]),
        (("from modelfactory.train", "import beside_i\nfrom modelfactory.train"), [(8, "beside_it")]),
        (("SOURCE = Files", "SOURCE = Fils"), [(10, "Files")]),
        (("return [variant(", "return [varient("), [(37, "variant")]),
        (("SOURCE = Files", "import math\nSOURCE = math.flor"), [(11, "floor")]),
    ],
)
def test_a_misspelt_name(
    write: Callable[..., Path], tmp_path: Path, edit: tuple[str, str], told: list[tuple[int, str]]
) -> None:
    (tmp_path / "beside_it.py").write_text("")
    found = faults(write(edit))
    assert [(int(f.place.rpartition(":")[2]), f.remedy) for f in found] == [
        (line, f"Did you mean {name!r}?") for line, name in told
    ]


OWN = """\
from dataclasses import dataclass, replace
from modelfactory.models import Block

@dataclass(frozen=True, kw_only=True)
class Own:
    fault: str
    def __post_init__(self):
        self.look("declared")
    def check(self, d_model, max_seq_len):
        self.look("checked")
    def look(self, when):
        if self.fault == when:
            raise ValueError("no luck")
        if self.fault == f"{when} by a typo":
            self.lok(when)
    def n_parameters(self, *_): return 0
    build = flops_per_token = n_parameters

def mixed(model):
    layer = replace(model.blocks[0], mixer=Own(fault="FAULT"))
    return replace(model, blocks=(layer,))

SOURCE ="""


@pytest.mark.parametrize(
    ("fault", "place", "found", "remedy"),
    [
        ("declared", "29: Own.__post_init__", "ValueError: no luck (a_study.py:22)", "Mend Own."),
        ("checked", "30: Own.check", "ValueError: no luck (a_study.py:22)", "Mend Own."),
        (
            "checked by a typo",
            "30: Own.check",
            "AttributeError: 'Own' object has no attribute 'lok' (a_study.py:24)",
            "Mend Own. Did you mean 'look'?",
        ),
    ],
)
def test_a_spec_of_the_author_that_raises_is_told_as_such(
    write: Callable[..., Path], fault: str, place: str, found: str, remedy: str
) -> None:
    model = 'GPT2(n_layers=1, d_model=8 if name == "small" else 16, n_heads=2, max_seq_len=8)'
    file = write(("SOURCE =", OWN.replace("FAULT", fault)), (model, f"mixed({model})"))
    (told,) = faults(file)
    assert told.place == f"{file}:{place}"
    assert told.found == found
    assert told.wanted == "a call that returns, or refuses a value by `require` of modelfactory.spec"
    assert told.remedy == remedy


def test_a_method_that_the_author_calls_is_told_by_its_line(write: Callable[..., Path]) -> None:
    called = OWN.replace("SOURCE =", 'Own(fault="now").look("now")\n\nSOURCE =')
    (told,) = faults(write(("SOURCE =", called)))
    assert told.place.endswith("a_study.py:22")
    assert told.found == "ValueError: no luck"
