from __future__ import annotations

import torch

from modelfactory.train.speed import measure


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
