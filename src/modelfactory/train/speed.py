"""What this machine can do: measured once, kept by the caller, never read by the loop."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from modelfactory.models import Decoder
    from modelfactory.stage import Site

GPU_PEAKS = {
    "H100 PCIE": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "A100": 312e12,
    "GB200": 2_500e12,
    "B200": 2_250e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
    "MI300X": 1_307e12,
}
"""Dense bf16 FLOP/s with float32 accumulation, by a part of the GPU's name, the longer ones first. From
the makers' data sheets, which state twice as much with sparsity; H100 without a suffix is SXM."""
_VOCAB_SIZE = 4_096
_ROWS = 4
_REPEATS = 5


def measure(*, threads: int | None = None, compiled: bool = False) -> dict[str, Any]:
    """Return speeds of matrix products and of training a small decoder.

    Takes about 5 seconds; with `compiled` up to a minute more, the first time. Other work on the machine
    makes all of it slower. Leaves torch's threads and global generator as they were.

    Args:
        threads: to use; by default as many as torch uses.
        compiled: whether torch.compile is measured too.

    Returns:
        threads; `{bf16,fp32}_peak_flops_per_s` of a square matrix product;
        `{bf16,fp32}_flops_per_s` of eager training by the 6N + 12LHQT formula, `eager_flops_per_s` the larger
        of the two and `faster_precision` its name. With `compiled` also `compiled_flops_per_s` in bf16,
        `compile_speedup` over eager bf16, and `compile_seconds` of the first step; where nothing can be
        compiled (no C++ compiler) the speed-up is 1 and `compile_error` says why.
    """
    from modelfactory.train.settings import torch_settings

    peaks = product_peaks(threads=threads)
    used = peaks["threads"]
    with torch_settings(used):
        eager = {
            f"{name}_flops_per_s": _Trial(name, is_compiled=False).flops_per_s() for name in ("bf16", "fp32")
        }
        faster = max(eager, key=eager.__getitem__)
        found: dict[str, Any] = {**peaks, **eager}
        found |= {"eager_flops_per_s": eager[faster], "faster_precision": faster.partition("_")[0]}
        return found | (_compiled(eager["bf16_flops_per_s"]) if compiled else {})


def product_peaks(*, threads: int | None = None) -> dict[str, Any]:
    """Return threads and `{bf16,fp32}_peak_flops_per_s` of a square matrix product, in about a second."""
    import torch

    from modelfactory.train.settings import torch_settings

    used = threads or torch.get_num_threads()
    with torch_settings(used):
        peaks = {
            f"{name}_peak_flops_per_s": _product_flops_per_s(dtype)
            for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32))
        }
    return {"threads": used, **peaks}


def peak_of(site: Site, precision: str) -> float:
    """Return what MFU is relative to: FLOP/s of all processes of a training stage, 0 where unknown.

    On GPUs it is the data sheet's figure for bf16 whatever the precision; elsewhere what was measured.
    """
    if site.device == "cuda":
        import torch

        return known_gpu_peak(torch.cuda.get_device_name()) * site.parallel.world_size
    return site.peak_flops_per_s.get(precision, 0.0)


def known_gpu_peak(name: str) -> float:
    """Return dense bf16 FLOP/s of a GPU by the name that CUDA gives, 0 if it is not in GPU_PEAKS."""
    words = name.upper().replace("-", " ")
    return next((peak for part, peak in GPU_PEAKS.items() if part in words), 0.0)


def _compiled(eager_flops_per_s: float) -> dict[str, Any]:
    start = time.perf_counter()
    trial = _Trial("bf16", is_compiled=True)
    try:
        trial.step()
    except Exception as error:  # noqa: BLE001 - torch raises its own kinds for each compiler that is missing
        seconds = time.perf_counter() - start
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        return {"compile_speedup": 1.0, "compile_seconds": seconds, "compile_error": reason}
    seconds = time.perf_counter() - start
    speed = trial.flops_per_s()
    return {
        "compiled_flops_per_s": speed,
        "compile_speedup": speed / eager_flops_per_s,
        "compile_seconds": seconds,
    }


def _product_flops_per_s(dtype: torch.dtype, size: int = 1_536) -> float:
    import torch

    a = torch.ones(size, size, dtype=dtype)
    return 2 * size**3 / _fastest(lambda: torch.mm(a, a))


class _Trial:
    """Training steps of a small decoder on one batch."""

    def __init__(self, precision: str, *, is_compiled: bool) -> None:
        import torch

        model = small_decoder()
        self._module: Any = model.build(_VOCAB_SIZE, seed=0)
        self._flops = model.flops_per_token(_VOCAB_SIZE, model.max_seq_len) * _ROWS * model.max_seq_len
        loss_sum = self._module.loss_sum
        self._loss_sum = torch.compile(loss_sum, dynamic=False) if is_compiled else loss_sum
        self._is_bf16 = precision == "bf16"
        generator = torch.Generator().manual_seed(0)
        self._tokens = torch.randint(_VOCAB_SIZE, (_ROWS, model.max_seq_len), generator=generator)
        self._valid = torch.ones_like(self._tokens, dtype=torch.bool)

    def flops_per_s(self) -> float:
        return float(self._flops / _fastest(self.step))

    def step(self) -> None:
        import torch

        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._is_bf16):
            loss = self._loss_sum(self._tokens, self._tokens, self._valid)
        loss.backward()  # type: ignore[no-untyped-call]
        self._module.zero_grad(set_to_none=True)


def small_decoder() -> Decoder:
    """Return the decoder that is measured: large enough that products dominate, small enough for seconds."""
    from modelfactory.models import Llama

    return Llama(n_layers=2, d_model=256, n_heads=4, max_seq_len=256)


def _fastest(call: Callable[[], object]) -> float:
    """Return seconds of the median of a few calls, after one that is not counted."""
    call()
    taken = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return max(statistics.median(taken), 1e-9)
