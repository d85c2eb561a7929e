"""Fields of config.json of any type: a decoder comes of them, or the field is named."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from modelfactory.errors import SourceError, SpecError
from modelfactory.interchange import export_hugging_face
from modelfactory.interchange.config import read_json
from modelfactory.interchange.families import FAMILIES
from modelfactory.interchange.family import family_of
from modelfactory.interchange.hugging_face import outline
from modelfactory.interchange.weights import shapes_of
from modelfactory.models import Bamba, Gemma2
from tests.interchange.material import SIZES, SPECS, VOCAB_SIZE, built

if TYPE_CHECKING:
    from pathlib import Path

ODD: tuple[Any, ...] = ("x", "4", 3, 0, -1, 1.5, True, False, None, [], {}, ["x"], {"a": 1}, 1e308, 10**400)

NAMES = {"rope_theta": r"(rope_theta|Rope\.theta)"}


@pytest.mark.parametrize("name", SPECS)
def test_every_field_with_odd_values(name: str, tmp_path: Path) -> None:
    _, spec = SPECS[name]
    family, written = family_of(spec, FAMILIES)
    fields = {"architectures": [family.architecture], "vocab_size": VOCAB_SIZE} | written
    extra = ("rope_scaling", "rope_parameters", "rope_theta", "sliding_window", "layer_types")
    tried = 0
    for field in sorted({*fields, *extra, "max_window_layers", "partial_rotary_factor"}):
        for value in ODD:
            tried += 1
            (tmp_path / "config.json").write_text(json.dumps(fields | {field: value}))
            with contextlib.suppress(SourceError):  # any other error is a fault
                found, vocab_size, _ = outline(tmp_path)
                shapes_of(found, vocab_size)
    assert tried > 15 * 15


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    "key", ["rope_type", "factor", "low_freq_factor", "rope_theta", "truncate", "mscale"]
)
def test_every_field_of_a_scaling_with_odd_values(field: str, key: str, tmp_path: Path) -> None:
    family, written = family_of(SPECS["llama 3"][1], FAMILIES)
    fields = {"architectures": [family.architecture], "vocab_size": VOCAB_SIZE} | written
    scaling = fields.pop("rope_scaling")
    for value in ODD:
        changed = {field: scaling | {key: value}}
        (tmp_path / "config.json").write_text(json.dumps(fields | changed))
        if value is None and key != "truncate":
            continue  # as good as missing
        if key in ("low_freq_factor", "factor", "rope_theta") and value in (3, 1.5, 1e308):
            continue
        with pytest.raises(SourceError, match=rf"config.json: .*{NAMES.get(key, key)}"):
            outline(tmp_path)


def test_a_file_that_is_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(SourceError, match=r"config\.json: found no file that can be read"):
        read_json(tmp_path / "config.json")


def test_more_layers_than_any_file_has(tmp_path: Path) -> None:
    family, written = family_of(SPECS["llama"][1], FAMILIES)
    fields = {"architectures": [family.architecture], "vocab_size": VOCAB_SIZE} | written
    (tmp_path / "config.json").write_text(json.dumps(fields | {"num_hidden_layers": 10_000_000}))
    with pytest.raises(SourceError, match="num_hidden_layers: found 10000000, wanted a whole number"):
        outline(tmp_path)


def test_what_transformers_refuses_is_not_exported(tmp_path: Path) -> None:
    width = Bamba(**SIZES, attention_layers=(1,), mamba_heads=3, mamba_head_dim=16, state_dim=16)
    scale = Gemma2(**SIZES, d_ff=96, window=8, scale=0.3)
    for spec in (width, scale):
        with pytest.raises(SpecError, match="no architecture of transformers"):
            export_hugging_face(built(spec), spec, None, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
