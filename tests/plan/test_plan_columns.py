"""The cover's columns against loops over every composition, and what is left out of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.plan.compose import BACK, Curve
from haotuner.plan.cover import COLUMNS, Columns

Found = list[tuple[float, frozenset[int]]]


def looped(curves: Sequence[Curve], m: int, worth_us: float) -> Found:
    """Every composition of at most three regions, noted one by one."""
    least_us: dict[frozenset[int], float] = {}

    def note(us: float, *used: int) -> None:
        least_us[frozenset(used)] = min(us, least_us.get(frozenset(used), np.inf))

    for a, lead in enumerate(curves):
        for tiles in range(m // lead.rows, max(m // lead.rows - 1 - BACK, 0), -1):
            us, rest = float(lead.lead(np.array([tiles]))[0]), m - tiles * lead.rows
            if rest == 0:
                note(us, a)
                continue
            for b, second in enumerate(curves):
                if second.rows == 1:
                    note(us + rest * second.follow_us, a, b)
                for more in range(rest // second.rows, max(rest // second.rows - 1 - BACK, 0), -1):
                    left, so_far = rest - more * second.rows, us + more * second.follow_us
                    for c, third in enumerate(curves) if left else ():
                        total = so_far + left // third.rows * third.follow_us
                        if us < worth_us and left % third.rows == 0 and total <= worth_us:
                            note(total, a, b, c)
                    if left == 0 and us < worth_us and so_far <= worth_us:
                        note(so_far, a, b)
    ordered = sorted(least_us, key=lambda used: (least_us[used], sorted(used)))
    dear = [used for used in ordered if least_us[used] > worth_us]
    return [
        (least_us[used], used) for used in [u for u in ordered if least_us[u] <= worth_us][:COLUMNS] + dear[: COLUMNS // 2]
    ]


def curve(at: int, rows: int, tile_us: float, start_us: float) -> Curve:
    points = {tiles: start_us + tiles * tile_us for tiles in (1, 4, 16)}
    return Curve.of(f"k{at}", rows, points, round(0.9 * tile_us, 2))


def curves(*rows: int) -> list[Curve]:
    return [curve(at, height, 1.0 * height, 0.5 * at) for at, height in enumerate(rows)]


tile = st.tuples(st.integers(1, 9), st.sampled_from([0.5, 1.0, 1.5, 2.25]), st.sampled_from([0.0, 0.5, 3.0]))


@given(st.lists(tile, min_size=1, max_size=7), st.integers(1, 90), st.sampled_from([0.8, 1.06, 1.5, 10.0]))
def test_they_are_those_of_loops_bit_for_bit(tiles: list[tuple[int, float, float]], m: int, slack: float) -> None:
    some = [curve(at, *parameters) for at, parameters in enumerate([(1, 1.0, 0.0), *tiles])]
    assert Columns(some).of(m, slack * m) == looped(some, m, slack * m)


@pytest.mark.parametrize("m", [1, 7, 64, 300])
def test_a_shape_always_has_one_that_can_be_served(m: int) -> None:
    assert all(0 in used or len(used) == 1 for _, used in Columns(curves(1, 5)).of(m, 0.0))
    assert Columns(curves(1, 5)).of(m, 0.0)


def test_the_cheapest_come_first_and_not_too_many() -> None:
    columns = Columns(curves(*range(1, 25))).of(97, 1e9)
    assert len(columns) == COLUMNS and [us for us, _ in columns] == sorted(us for us, _ in columns)
    assert len({used for _, used in columns}) == COLUMNS
