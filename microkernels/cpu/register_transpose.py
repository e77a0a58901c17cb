"""Register transpose: a square of vectors turned over its diagonal by shuffles of two vectors each.

Within 128 bits lanes are woven (``unpcklps``, ``unpcklpd``), then pieces of 128 bits are sorted into even and odd ones: each
is one instruction of AVX and AVX-512 that wants no register of indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

PIECE = 4  # lanes in 128 bits


def transposed_square(vectors: Sequence[Any], shuffle: Callable[[Any, Any, Sequence[int]], Any]) -> list[Any]:
    """Vector ``i`` of the result has lane ``i`` of each. ``shuffle``: lanes of two vectors, one behind the other, by place.

    As many vectors as each has lanes, a power of two.
    """
    left = list(vectors)
    stages, order = _network(len(left))
    for stage in stages:
        for item, other, low, high in stage:
            left[item], left[other] = shuffle(left[item], left[other], low), shuffle(left[item], left[other], high)
    return [left[position] for position in order]


Step = tuple[int, int, tuple[int, ...], tuple[int, ...]]


@cache
def _network(lanes: int) -> tuple[tuple[tuple[Step, ...], ...], tuple[int, ...]]:
    """Stages of pairs with what both become, and where each column is found in the end."""
    piece, stages, distance = min(PIECE, lanes), [], 1
    square = np.arange(lanes * lanes).reshape(lanes, lanes)
    while distance < lanes:
        low, high = _woven(lanes, piece, distance) if distance < piece else _sorted(lanes, piece)
        pairs = tuple((index, index + distance, low, high) for index in range(lanes) if not index & distance)
        for item, other, *_ in pairs:
            both = np.concatenate([square[item], square[other]])
            square[item], square[other] = both[list(low)], both[list(high)]
        stages.append(pairs)
        distance *= 2
    columns = {int(row[0]) % lanes: index for index, row in enumerate(square)}
    return tuple(stages), tuple(columns[column] for column in range(lanes))


def _woven(lanes: int, piece: int, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of every piece the first halves (the last ones) of both, ``width`` lanes of each in turn."""
    places = np.arange(lanes).reshape(-1, 2, piece // 2 // width, width)
    both = np.stack([places, places + lanes], axis=3)  # piece, half, group, which of the two, lane
    low, high = both[:, 0].reshape(-1), both[:, 1].reshape(-1)
    return tuple(low.tolist()), tuple(high.tolist())


def _sorted(lanes: int, piece: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Even and odd pieces of both."""
    places = np.arange(2 * lanes).reshape(-1, 2, piece)
    return tuple(places[:, 0].reshape(-1).tolist()), tuple(places[:, 1].reshape(-1).tolist())
