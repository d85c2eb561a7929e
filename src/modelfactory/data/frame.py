"""Daft, set up for a stage.

Daft's native runner works on many threads and gives no promise about the order of rows, so every result
here is sorted by a row number. An exception inside a Python function on Daft loses its type on the way out:
functions return what went wrong as a value.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    Expression = Any
    """A daft.Expression; Daft is imported where work starts."""

ROW = "row"


def prepared(threads: int) -> Any:
    """Import Daft for work on at most `threads` threads and return it.

    Daft fixes its threads once in a process, so a later call cannot change them; no result depends on them.
    """
    os.environ["DO_NOT_TRACK"] = "true"  # read by Daft when it is imported: its telemetry is on by default
    import daft

    pa.set_cpu_count(threads)
    try:
        daft.set_runner_native(num_threads=threads)
    except daft.exceptions.DaftCoreException as error:
        if "already set" not in str(error) and "more than once" not in str(error):
            raise
    return daft


def computed(
    columns: Mapping[str, pa.Array], expressions: Mapping[str, Callable[[Any], Expression]]
) -> pa.Table:
    """Return one column for each expression, row by row in the order of the arrays in `columns`.

    Args:
        columns: Arrays of equal length, at least one row.
        expressions: By name, functions of the module `daft` to an expression over `columns`.
    """
    import daft

    length = len(next(iter(columns.values())))
    table = pa.table({ROW: pa.array(range(length), pa.int64()), **columns})
    made = [make(daft).alias(name) for name, make in expressions.items()]
    frame = daft.from_arrow(table).select(daft.col(ROW), *made).sort(ROW)
    return frame.to_arrow().drop_columns([ROW])


def first_of_each(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the row numbers, ascending, at which each pair (high, low) occurs first."""
    import daft
    import numpy as np

    rows = np.arange(len(high), dtype=np.int64)
    frame = daft.from_arrow(pa.table({ROW: rows, "high": high, "low": low}))
    firsts = frame.groupby("high", "low").agg(daft.col(ROW).min()).select(ROW).to_arrow()
    return np.sort(firsts[ROW].to_numpy())
