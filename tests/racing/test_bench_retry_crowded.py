"""Blocks of several threads are timed again where the machine sees that they share a core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from haotuner.bench.contender import MACHINE, Setting
from haotuner.bench.peers.machine import CALL_FLOPS, Machine
from haotuner.bench.processes import Processes
from haotuner.bench.retry import RetryContended
from haotuner.isolate.answers import ChildNotResponding, Refused

FAILED = Refused("run", "crash", "")


class Looks:
    """Processes of the machine alone, whose looks are known beforehand; the last for ever. None: it is down."""

    def __init__(self, *ratios: float | None) -> None:
        self.ratios, self.looked = ratios, 0

    def as_processes(self) -> Processes:
        return cast(Processes, self)

    def names(self) -> list[str]:
        return [MACHINE] if self.ratios else []

    def ask(self, name: str, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        assert (name, dict(request)) == (MACHINE, {"do": "crowding"}) and limit_s > 1
        ratio = self.ratios[min(self.looked, len(self.ratios) - 1)]
        self.looked += 1
        if ratio is None:
            raise FAILED
        return {"crowding": ratio}


class Blocks:
    """Blocks that take 1, 2, 3... microseconds."""

    def __init__(self) -> None:
        self.timed = 0

    def __call__(self) -> dict[str, Any]:
        self.timed += 1
        return {"us": float(self.timed)}


@pytest.mark.parametrize("threads, ratios, looked", [(1, (1.9,), 0), (2, (), 0), (2, (1.0,), 2), (2, (None,), 2)])
def test_a_block_that_nothing_speaks_against_is_timed_once(threads: int, ratios: tuple[float, ...], looked: int) -> None:
    looks, blocks = Looks(*ratios), Blocks()
    seen, crowded = RetryContended(looks.as_processes(), threads).block(blocks)
    assert (seen["us"], crowded, blocks.timed, looks.looked) == (1.0, False, 1, looked)


def test_a_block_with_a_shared_core_before_or_after_it_is_timed_again() -> None:
    looks, blocks = Looks(1.0, 1.0, 1.0, 1.7, 1.7, 1.0, 1.0), Blocks()
    retry = RetryContended(looks.as_processes(), 2)
    assert retry.block(blocks)[0]["us"] == 1.0
    seen, crowded = retry.block(blocks)  # the second is spoilt at its end, the third at its start
    assert (seen["us"], crowded, looks.looked) == (4.0, False, 8)


def test_a_spell_that_does_not_end_is_told() -> None:
    looks, blocks = Looks(1.0, 1.0, 1.9), Blocks()
    retry = RetryContended(looks.as_processes(), 2)
    retry.block(blocks)
    assert retry.block(blocks)[1] and blocks.timed > 3


def test_a_contender_that_fails_is_told_at_once() -> None:
    def fails() -> dict[str, Any]:
        raise FAILED

    with pytest.raises(ChildNotResponding):
        RetryContended(Looks(1.9).as_processes(), 2).block(fails)


@pytest.mark.long
def test_the_machine_looks_and_then_computes_as_much_as_before() -> None:
    machine = Machine(Setting(threads=2))

    def operations() -> float:
        return float(machine._library.machine_compute())

    before = operations()
    assert before >= 2 * CALL_FLOPS
    looks = sorted(machine.crowding() for _ in range(100))
    assert looks[10] > 0.5 and looks[0] < 20, "looks may fall into time slices of others: all but a few on a busy machine"
    assert operations() == before, "a look makes an eighth of the rounds"
