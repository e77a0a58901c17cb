"""The analysis of a CPU's cold weights: where prefetchers begin anew, what instructions fetch; and of code before FMA."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.cost.families import demand
from haotuner.cost.machine import machine
from haotuner.cost.roofline import expected_us, exposed_us, step_cycles
from haotuner.microkernels.cpu.dense import NEXT_PANEL_TILES, PREFETCHES, CpuDense
from haotuner.spec.demand import Demand
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import BIG_CORE, CPU_DENSE, OP, product, stream
from tests.cost.test_cost_convolution import ANY, TILES, asked_of

CORE = replace(BIG_CORE, memory_gbps=36.0)  # Zen 4
OLD_CORE = replace(BIG_CORE, id="old-core", arch="x86-64-v2", wave_width=4, registers_per_thread=16, fma_pipes=2)


def tile(mr: int, nr: int, *, pw: int | None = None, ku: int = 4, vl: int = 16, pf: int = 0) -> MicroKernel:
    return CpuDense().kernel(mr, nr, pw or nr, ku, vl, pf, OP["n"])


def asked(kernel: MicroKernel, m: int, *, weights: str = "cold", op: Op = OP, device: Device = CORE) -> Demand:
    return demand(device, CPU_DENSE, op, [(kernel, Shape.of(m=m))], weights=weights)


def waited(kernel: MicroKernel, m: int, device: Device = CORE) -> float:
    """Share of the expected time in which memory is waited for."""
    demands = asked(kernel, m, device=device)
    return float((exposed_us(demands, machine(device)) / expected_us(device, demands))[0])


def test_nothing_is_waited_for_with_weights_in_cache() -> None:
    assert exposed_us(asked(tile(8, 16), 8, weights="hot"), machine(CORE))[0] == 0


@given(device=ANY, params=TILES)
def test_nothing_is_waited_for_where_other_waves_work(device: Device, params: dict[str, int]) -> None:
    assert exposed_us(asked_of(device, **params), machine(device))[0] == 0


def test_a_step_of_many_rows_leaves_the_load_queue_no_room_to_run_ahead() -> None:
    shares = [waited(tile(mr, 16), mr) for mr in (2, 4, 8)]
    assert shares == sorted(shares) and shares[-1] > 0.1
    assert waited(tile(8, 48), 8) < waited(tile(8, 16), 8)


def test_fetching_far_ahead_hides_pages_and_not_the_streams_that_end() -> None:
    near, far = (asked(tile(8, 16, pf=pf), 8) for pf in (8, 128))
    assert exposed_us(far, machine(CORE))[0] < exposed_us(near, machine(CORE))[0]
    single, three = (waited(tile(8, 48, pw=pw, pf=128), 8) for pw in (48, 16))
    assert single == 0 < three


def test_short_streams_begin_more_often() -> None:
    short, long = Op.parse("dense_n2304_k192"), Op.parse("dense_n2304_k3072")
    shares = []
    for op in (short, long):
        demands = asked(tile(4, 32, pw=16), 4, op=op)
        shares.append(float((exposed_us(demands, machine(CORE)) / expected_us(CORE, demands))[0]))
    assert shares[0] > 1.5 * shares[1]


@given(
    mr=st.integers(4, 10), vectors=st.integers(1, 3), ku=st.sampled_from([1, 2, 4, 8]), pf=st.sampled_from(NEXT_PANEL_TILES)
)
def test_the_share_of_the_next_panel_is_what_the_program_fetches(mr: int, vectors: int, ku: int, pf: int) -> None:
    """Lines that a group of unrolled steps fetches, over those it reads; a narrow panel is fetched whole by one tile."""
    kernel = tile(mr, 16 * vectors, ku=ku, pf=pf)
    group = ku * vectors  # lines of 64 bytes that ``ku`` steps read
    fetched = -(-group // pf)
    assert stream(asked(kernel, mr)).fetched[0] == pytest.approx(min(fetched / group, 1.0))


def test_a_panel_that_was_fetched_leaves_nothing_to_wait_for_and_one_in_part_begins_anew() -> None:
    whole, part = (stream(asked(tile(8, 16, ku=ku, pf=4), 8)) for ku in (1, 8))
    assert (whole.fetched[0], whole.new_pages[0], whole.new_streams[0]) == (1, 0, 0)
    assert part.fetched[0] < 1 and part.new_pages[0] > 0
    assert part.new_streams[0] == OP["n"] / 16
    four = stream(asked(tile(8, 16, ku=8, pf=4), 32))  # by the fourth tile all of it has come
    assert (four.new_pages[0], four.new_streams[0], four.passes[0], four.brought[0]) == (0, 0, 4, 0.25)


@given(mr=st.integers(4, 10), vectors=st.integers(1, 3), ku=st.sampled_from([1, 8]), pf=st.sampled_from(PREFETCHES))
def test_another_row_tile_never_takes_less_time(mr: int, vectors: int, ku: int, pf: int) -> None:
    kernel = tile(mr, 16 * vectors, ku=ku, pf=pf)
    demands = demand(CORE, CPU_DENSE, OP, [(kernel, Shape.of(m=mr * tiles)) for tiles in range(1, 9)])
    assert (np.diff(expected_us(CORE, demands)) > 0).all()


def test_threads_share_the_waiting() -> None:
    demands, two = asked(tile(8, 16), 8), replace(CORE, compute_units=2, memory_gbps=72.0)
    alone, shared = (exposed_us(demands, machine(device))[0] for device in (CORE, two))
    assert shared == pytest.approx(alone / 2)


def test_before_fma_a_multiply_add_is_three_instructions_and_an_accumulator_waits_less() -> None:
    assert (machine(OLD_CORE).fma_latency, machine(CORE).fma_latency) == (3, 4)
    fused, apart = (asked(tile(2, 8, vl=4), 2, device=replace(OLD_CORE, arch=arch)) for arch in ("x86-64-v3", "x86-64-v2"))
    assert (product(fused).checks[0], product(apart).checks[0]) == (0, 2 + 2 * 4)
    assert apart.tiles.registers[0] == fused.tiles.registers[0] + 1
    resident = np.ones(1)
    assert step_cycles(apart, machine(OLD_CORE), resident)[0] > step_cycles(fused, machine(OLD_CORE), resident)[0]


def test_a_pipe_that_a_busy_moment_hid_is_seen_in_the_peak() -> None:
    hidden = replace(OLD_CORE, fma_pipes=1, peak_gflops_unit=2 * 2 * 4 * 3.7 * 0.9, peak_gflops=None)
    assert machine(hidden).pipes == 2
    assert machine(replace(hidden, peak_gflops_unit=None)).pipes == 1


def test_rows_beyond_the_address_registers_are_loaded_by_an_address_that_is_loaded() -> None:
    loads = [product(asked(tile(mr, 16), mr)).loads[0] for mr in (7, 8, 12)]
    assert loads == [8, 8 + 1 + 1, 12 + 1 + 5]
