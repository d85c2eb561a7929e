"""Products with weights on a CPU, by oneDNN with the weights in its own layout.

torch gives float32 products to MKL, which leaves much of a CPU unused that is not Intel's, and of any for few
rows: generation reads all weights for a handful of them. The sums come in another order, so results differ by
rounding, about 1e-6 of a product. The operators are those that torch.compile emits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

MAX_BYTES = 2 * 1024**3
"""Of weights kept a second time; products with the others go to MKL."""
ROWS = 512
"""That the layout is chosen for; any number of rows is right."""


class PackedProducts(TorchFunctionMode):
    """Inside `with`, `functional.linear` of float32 parameters on a CPU goes to oneDNN.

    Weights are kept in its layout until this object goes; one that is changed meanwhile is laid out anew. No
    gradient is taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self._packed: dict[int, tuple[torch.nn.Parameter, int, torch.Tensor]] = {}
        self._n_bytes = 0
        operators = torch.ops.mkldnn
        self._product: Any = getattr(operators, "_linear_pointwise", None)
        self._lay_out: Any = getattr(operators, "_reorder_linear_weight", None)
        self._is_there = self._product is not None and self._lay_out is not None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Take products, pass on all else."""
        if function is functional.linear and self._takes(*args[:2], **(kwargs or {})):
            bias = args[2] if len(args) > 2 else None
            return self._product(args[0], self._of(args[1]), bias, "none", [], "")
        return function(*args, **(kwargs or {}))

    def _takes(self, x: Any = None, weight: Any = None, **others: Any) -> bool:
        return (
            self._is_there
            and not others
            and isinstance(weight, torch.nn.Parameter)
            and weight.device.type == x.device.type == "cpu"
            and weight.dtype == x.dtype == torch.float32
            and x.numel() > 0
            and not torch.is_grad_enabled()
            and (id(weight) in self._packed or self._n_bytes + weight.nbytes <= MAX_BYTES)
        )

    def _of(self, weight: torch.nn.Parameter) -> torch.Tensor:
        """Return a weight in oneDNN's layout; it is held, so its id stays its own."""
        known = self._packed.get(id(weight))
        version = weight._version  # noqa: SLF001 (counts changes in place; nothing public does)
        if known is None or known[1] != version:
            self._n_bytes += weight.nbytes if known is None else 0
            self._packed[id(weight)] = known = (weight, version, self._lay_out(weight.detach(), ROWS))
        return known[2]
