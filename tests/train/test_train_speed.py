from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from modelfactory.stage import Site
from modelfactory.train.speed import GPU_PEAKS, known_gpu_peak, measure, peak_of, product_peaks

if TYPE_CHECKING:
    from pathlib import Path


def test_speeds_are_plausible_and_nothing_is_left_changed() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    found = measure(threads=1)
    assert found["threads"] == 1
    assert found["eager_flops_per_s"] == max(found["bf16_flops_per_s"], found["fp32_flops_per_s"])
    assert found["faster_precision"] in {"bf16", "fp32"}
    for name in ("bf16_peak_flops_per_s", "fp32_peak_flops_per_s", "eager_flops_per_s"):
        assert 1e6 < found[name] < 1e16
    assert "compile_speedup" not in found
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_peaks_alone_need_no_training() -> None:
    found = product_peaks(threads=1)
    assert found.keys() == {"threads", "bf16_peak_flops_per_s", "fp32_peak_flops_per_s"}


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA GB200", 2_500e12),
        ("NVIDIA L40S", 362e12),
        ("AMD Instinct MI300X", 1_307e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA B200", 2_250e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 2080", 0.0),
    ],
)
def test_gpus_are_known_by_their_names(name: str, peak: float) -> None:
    assert known_gpu_peak(name) == peak


def test_a_longer_name_comes_before_a_part_of_it() -> None:
    names = list(GPU_PEAKS)
    for n, name in enumerate(names):
        assert not any(before in name for before in names[:n])


def test_the_peak_is_that_of_the_precision_and_nothing_where_unknown(tmp_path: Path) -> None:
    peaks = {"bf16": 4e11, "fp32": 1e11}
    assert peak_of(Site(lake=tmp_path, threads=1, peak_flops_per_s=peaks), "fp32") == 1e11
    assert peak_of(Site(lake=tmp_path, threads=1), "bf16") == 0.0
