"""An exponential mean over a column of numbers, fast enough to be drawn anew with every tick."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_CHUNK = 64


def smoothed(values: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """Each value's mean with those before it, which count less the older they are.

    The first values are not pulled towards zero; what is no finite number counts for nothing.

    Args:
        values: In their order.
        weight: How much the mean before a value counts, 0 (nothing) to below 1.
    """
    if weight <= 0 or not len(values):
        return np.asarray(values, dtype=np.float64)
    there = np.isfinite(values)
    if there.all():
        sums = _decayed_sums(values, weight)
        sums *= 1.0 - weight
        # The geometric series; after these values it has its limit to the last digit.
        num_short = min(len(values), math.ceil(-40.0 / math.log(weight)))
        sums[:num_short] /= 1.0 - weight ** np.arange(1.0, num_short + 1.0)
        return sums
    sums = _decayed_sums(np.where(there, values, 0.0), weight)
    weights = _decayed_sums(there.astype(np.float64), weight)
    nothing = np.full(len(sums), np.nan)
    return np.asarray(np.divide(sums, weights, out=nothing, where=weights > 1e-300))


def _decayed_sums(values: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """``y[t] = weight * y[t - 1] + values[t]``, a chunk of rows at a time.

    Within a chunk it is one matrix product; only the ends of the chunks follow on each other.
    """
    size = min(_CHUNK, len(values))
    num_chunks = -(-len(values) // size)
    padded = np.zeros(num_chunks * size)
    padded[: len(values)] = values
    ages = np.arange(size)
    # decay[j, t]: what the value at j still counts at t.
    decay = np.where(ages[:, None] <= ages, weight ** np.maximum(ages - ages[:, None], 0.0), 0.0)
    inside = padded.reshape(num_chunks, size) @ decay
    whole = weight**size
    carried, carries = 0.0, np.empty(num_chunks)
    for index, end in enumerate(inside[:, -1].tolist()):
        carries[index] = carried
        carried = carried * whole + end
    inside += carries[:, None] * weight ** (ages + 1.0)
    return inside.reshape(-1)[: len(values)]
