"""Least times of calls that take turns, of the processor: other programs lengthen none of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

ROUNDS, LEAST_ROUNDS, CONTENDER_S = 300, 4, 0.5  # most and fewest turns, seconds after which there are no more


def least_us(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Least microseconds of the processor that a call takes, of each in turns; slow ones have fewer turns.

    Wall time would count what other programs do. Threads of a library count wherever they run.
    """
    least = dict.fromkeys(calls, float("inf"))
    spent = dict.fromkeys(calls, 0.0)
    for number in range(ROUNDS):
        for name, call in calls.items():
            if number < LEAST_ROUNDS or spent[name] < CONTENDER_S:
                begin = time.process_time()
                call()
                us = time.process_time() - begin
                least[name], spent[name] = min(least[name], us), spent[name] + us
    return {name: 1e6 * us for name, us in least.items()}
