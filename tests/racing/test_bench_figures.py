"""What figures are made of: intervals, the check of results, the clock, and the document they end up in."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from haotuner.bench import check
from haotuner.bench.check import error_share
from haotuner.bench.contender import MACHINE, OURS, OURS_AGAIN, Array
from haotuner.bench.operands import calls, copies
from haotuner.bench.race import Outcome, Row
from haotuner.bench.result import (
    DRAWS,
    Facts,
    Ratio,
    document,
    geomean,
    geomean_ratio,
    paired_ratio,
    resampled_medians,
    spread,
)
from haotuner.bench.table import cells, closing, header, line
from haotuner.bench.timing import Clock, difference_ns
from haotuner.spec.call_case import CallCase
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.record import Failed
from haotuner.spec.shape import Shape

OP = Op.parse("dense_n2304_k768")
RNG = np.random.default_rng(5)


def width(ratio: Ratio) -> float:
    assert ratio.low is not None and ratio.high is not None
    return ratio.high - ratio.low


def test_what_slows_a_whole_round_does_not_widen_the_interval():
    drift = np.exp(RNG.normal(0, 0.5, 11))
    ratio = paired_ratio(10 * drift, 20 * drift)
    assert ratio.value == pytest.approx(2) and ratio.low == pytest.approx(2) and ratio.high == pytest.approx(2)
    apart = paired_ratio(10 * drift, 20 * np.exp(RNG.normal(0, 0.5, 11)))
    assert width(apart) > 0.3


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    hits = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        common = rng.normal(0, 0.3, 15)
        ours, theirs = (np.exp(common + rng.normal(0, 0.05, 15)) for _ in range(2))
        ratio = paired_ratio(ours, 1.5 * theirs, seed)
        assert ratio.low is not None and ratio.high is not None
        hits += ratio.low <= 1.5 <= ratio.high
    assert 0.88 <= hits / 200 <= 1.0


def test_too_few_rounds_have_a_ratio_and_no_interval():
    ratio = paired_ratio([1, 1, 1, 1], [2, 2, 2, 2])
    assert (ratio.value, ratio.low, ratio.high) == (2, None, None)


def test_draws_are_the_same_for_the_same_seed_and_keep_rounds_together():
    blocks = [[1, 2, 3, 4, 5], [10, 20, 30, 40, 50]]
    drawn = resampled_medians(blocks, 7)
    assert drawn.shape == (DRAWS, 2)
    assert (drawn == resampled_medians(blocks, 7)).all()
    assert (drawn[:, 1] == 10 * drawn[:, 0]).all()


def test_geometric_means_and_spread():
    assert geomean([1, 4]) == 2
    ratio = geomean_ratio([1.0, 4.0], [np.full(DRAWS, 1.0), np.full(DRAWS, 4.0)])
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    assert geomean_ratio([2.0], []).low is None
    assert spread([1, 1, 2, 3, 3]) == 0.5


def product(m: int, n: int, k: int) -> tuple[CallCase, Array, Array]:
    """A call of a layer, its input and its weight."""
    op, shape = Op.parse(f"dense_n{n}_k{k}"), Shape.of(m=m)
    (case,) = calls(op, shape, 0, copies(op, shape, 1, 0), 1)
    return case, case.operands["x"], case.operands["weight"]


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 300, 17), (5, 64, 768), (700, 33, 4864)])
@pytest.mark.parametrize("flops", [1, check.CHECKED_FLOPS])
def test_fp32_arithmetic_in_any_order_is_right(m, n, k, flops, monkeypatch):
    monkeypatch.setattr(check, "CHECKED_FLOPS", flops)
    case, x, weight = product(m, n, k)
    assert error_share(case, x @ weight.T) < 1
    backwards = np.zeros((m, n), np.float32)
    for index in reversed(range(k)):  # the worst order of summation: one by one
        backwards += x[:, index : index + 1] * weight[:, index]
    assert error_share(case, backwards) < 1


def narrowed(a: Array, bits: int) -> Array:
    """fp32 with its mantissa cut to so many bits."""
    mask = np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)
    return (a.view(np.uint32) & mask).view(np.float32)


@pytest.mark.parametrize("bits", [7, 10], ids=["bf16", "tf32"])
@pytest.mark.parametrize("k", [768, 4864])
def test_narrower_arithmetic_is_wrong(bits, k):
    case, x, weight = product(40, 96, k)
    assert error_share(case, narrowed(x, bits) @ narrowed(weight, bits).T) > 1


@pytest.mark.parametrize("direct_rows", [300, 4])
def test_one_wrong_element_anywhere_is_wrong(monkeypatch, direct_rows):
    monkeypatch.setattr(check, "CHECKED_FLOPS", direct_rows * 2 * 130 * 40)
    m = 300
    case, x, weight = product(m, 130, 40)
    right = x @ weight.T
    assert error_share(case, right) < 1
    for row, column in itertools.product((0, m // 2, m - 1), (0, 77, 129)):
        wrong = right.copy()
        wrong[row, column] += 0.3
        assert error_share(case, wrong) > 1
        wrong[row, column] = np.nan
        assert error_share(case, wrong) == math.inf
    assert error_share(case, right[:, :-1]) == math.inf


def test_the_clock_goes_round_all_calls_and_times_at_least_one():
    seen: list[int] = []
    clock = Clock([partial(seen.append, index) for index in range(5)])
    block = clock.block(0.002)
    assert block.calls >= 1 and block.call_ns > 0
    assert seen == [i % 5 for i in range(len(seen))]
    assert len(seen) > block.calls, "warming up is not timed"
    clock.block(0.0)
    assert seen == [i % 5 for i in range(len(seen))], "a block goes on where the last one ended"


def test_the_difference_of_two_calls():
    assert difference_ns(lambda: sum(range(3000)), lambda: None, 0.05) > 1000


DEVICE = Device(id="x", kind="cpu", name="x", arch="x86-64-v4", compute_units=2, wave_width=16, registers_per_thread=32,
                peak_gflops=200.0, peak_gflops_unit=100.0, memory_gbps=40.0, memory_gbps_unit=30.0)  # fmt: skip


def raced(m, ours, peers, *, foreign=0.0, weights="cold", threads=1, failed=None, again=None) -> Row:
    """A row of six equal rounds."""
    times = {OURS: ours, OURS_AGAIN: again or ours, **peers}
    start = Row.empty(OP, Shape.of(m=m), threads, weights, failed or {})
    blocks = {name: (us,) * 6 for name, us in times.items() if us}
    return replace(start, blocks_us=blocks, foreign_cores=foreign, composition="k*1@serial")


def test_the_peak_of_the_moment_is_what_shares_are_of():
    start = raced(64, 100.0, {"torch": 300.0})
    row = replace(start, blocks_us={**start.blocks_us, MACHINE: (1000.0,) * 6}, machine_flops=120e6)
    entry = judged(row)["rows"][0]
    assert entry["peak_gflops"] == pytest.approx(120.0) and entry["peers_us"] == {"torch": 300.0}
    assert entry["peak_ratio"] == pytest.approx(OP.flops(Shape.of(m=64)) / 100e-6 / 120e9)


@pytest.mark.parametrize(("dtype", "peak"), [("fp16", 120.0), ("bf16", 2500.0), ("int8", 5000.0)])
def test_types_that_a_cpu_multiplies_in_tiles_are_held_against_those(dtype, peak):
    start = raced(64, 100.0, {"torch": 300.0})
    blocks = {**start.blocks_us, MACHINE: (1000.0,) * 6}
    row = replace(start, op=Op.parse(f"dense:n=64,k=64,dtype={dtype}"), blocks_us=blocks, machine_flops=120e6)
    with_tiles = Facts(device=replace(DEVICE, tensor_tflops=5.0))
    for facts, expected in ((with_tiles, peak), (Facts(device=DEVICE), 120.0)):
        (entry,) = document(Outcome(rows=[row], overhead_ns={}), ["torch"], facts)["rows"]
        assert entry["peak_gflops"] == pytest.approx(expected)


def test_the_bandwidth_of_the_moment_is_what_shares_are_of():
    start = raced(4, 100.0, {"torch": 300.0})
    row = replace(start, blocks_us={**start.blocks_us, MACHINE: (50.0,) * 6}, machine_bytes=2e6)
    entry = judged(row)["rows"][0]
    assert entry["bandwidth_ratio"] == pytest.approx(4 * OP["n"] * OP["k"] / 100e-6 / 40e9)
    assert judged(start)["rows"][0]["bandwidth_ratio"] == pytest.approx(4 * OP["n"] * OP["k"] / 100e-6 / 30e9)


def judged(*rows: Row, **facts: Any) -> dict[str, Any]:
    outcome = Outcome(
        rows=list(rows), missing={"zentorch": "No module named 'zentorch'"}, overhead_ns={1: 200.0}, seconds=1.0
    )
    report = document(outcome, ["torch", "onednn"], Facts(device=DEVICE, **facts))
    json.dumps(report, allow_nan=False)
    return report


def test_the_document_has_the_keys_of_the_contract():
    report = judged(raced(37, 100.0, {"torch": 300.0, "onednn": 150.0}, again=102.0), regret=lambda *seen: 0.01)
    row, summary = report["rows"][0], report["summary"]
    assert {
        "op",
        "shape",
        "threads",
        "weights",
        "ours_us",
        "peers_us",
        "spread",
        "peak_ratio",
        "regret",
        "contended",
    } <= set(row)
    assert {"geomean_vs_best", "geomean_vs", "worst", "dispatch_ns"} <= set(summary)
    assert report["missing"] == ["zentorch"]
    assert row["op"] == "dense_n2304_k768" and row["shape"] == {"m": 37}
    assert row["peers_us"] == {"torch": 300.0, "onednn": 150.0}, "ours against ours is no peer"
    assert (row["spread"], row["regret"], row["contended"]) == (0.0, 0.01, False)
    assert row["noise"]["ratio"] == pytest.approx(1.02)
    assert row["peak_ratio"] == pytest.approx(OP.flops(Shape.of(m=37)) / 100e-6 / 100e9), "one of two cores"
    assert row["bandwidth_ratio"] == pytest.approx(4 * 2304 * 768 / 100e-6 / 30e9)
    assert summary["geomean_vs"] == pytest.approx({"torch": 3.0, "onednn": 1.5})
    assert summary["worst"]["ratio"] == pytest.approx(1.5)
    assert {key: summary["worst"][key] for key in ("op", "shape", "peer")} == {
        "op": "dense_n2304_k768", "shape": {"m": 37}, "peer": "onednn"}  # fmt: skip
    assert summary["dispatch_ns"] == 200.0 and summary["noise_floor"] == pytest.approx(0.02)


def test_the_best_peer_is_another_one_at_each_shape():
    report = judged(raced(1, 10.0, {"torch": 20.0, "onednn": 90.0}), raced(2, 10.0, {"torch": 90.0, "onednn": 5.0}))
    assert report["summary"]["geomean_vs_best"] == pytest.approx(1.0)
    assert report["summary"]["interval_vs_best"] == pytest.approx([1.0, 1.0])
    assert report["summary"]["worst"]["peer"] == "onednn"
    assert [(row["shape"], row["ratio"]) for row in report["summary"]["lost"]] == [({"m": 2}, 0.5)]


def test_contended_rows_are_left_out_unless_there_are_no_others():
    clean, loaded = raced(1, 10.0, {"torch": 20.0}), raced(2, 10.0, {"torch": 80.0}, foreign=0.9)
    report = judged(clean, loaded)
    assert report["summary"]["geomean_vs_best"] == pytest.approx(2.0)
    assert (report["summary"]["rows"], report["summary"]["rows_left_out"], report["summary"]["contended"]) == (1, 1, False)
    assert [row["contended"] for row in report["rows"]] == [False, True]
    alone = judged(loaded)
    assert alone["summary"]["contended"] and alone["summary"]["geomean_vs_best"] == pytest.approx(8.0)
    assert "EVERY ROW WAS CONTENDED" in closing(alone)[0]
    assert "1 contended row left out" in closing(report)[0]


def test_cold_is_the_headline_and_every_state_has_its_group():
    report = judged(raced(1, 10.0, {"torch": 20.0}), raced(1, 10.0, {"torch": 30.0}, weights="hot"),
                   raced(1, 10.0, {"torch": 50.0}, weights="hot", threads=2))  # fmt: skip
    assert (report["summary"]["weights"], report["summary"]["geomean_vs_best"]) == ("cold", pytest.approx(2.0))
    assert [(g["weights"], g["threads"], round(g["geomean_vs_best"], 6)) for g in report["groups"]] == [
        ("cold", 1, 2.0), ("hot", 1, 3.0), ("hot", 2, 5.0)]  # fmt: skip
    assert judged(raced(1, 10.0, {"torch": 30.0}, weights="hot"))["summary"]["weights"] == "hot"


def test_tuning_pays_for_itself_after_enough_calls_or_never():
    break_even = judged(raced(1, 10.0, {"torch": 20.0, "onednn": 10.0}), tuning_seconds=30.0)["summary"]["break_even_calls"]
    assert break_even == {"best": None, "torch": 3_000_000, "onednn": None}
    assert judged(raced(1, 10.0, {"torch": 20.0}))["summary"]["break_even_calls"] == {}


def test_a_row_without_a_time_of_ours_or_of_peers_counts_for_nothing():
    broken = raced(1, None, {"torch": 20.0}, failed={OURS: Failed(stage="verify", reason="wrong", detail="2x")})
    lonely = raced(2, 10.0, {})
    report = judged(broken, lonely)
    assert [row["ours_us"] for row in report["rows"]] == [None, 10.0]
    assert report["summary"]["geomean_vs_best"] is None and report["summary"]["worst"] is None
    assert report["rows"][0]["failed"] == {OURS: {"stage": "verify", "reason": "wrong", "detail": "2x"}}
    assert cells(report["rows"][0], ["torch"])[-1] == "ours: wrong"


def test_why_a_peer_has_no_time_is_said_once():
    unable = {"onednn": Failed(stage="build", reason="error", detail="it is raced in fp32, not in int8")}
    report = judged(raced(1, 10.0, {"torch": 20.0}, failed=unable), raced(2, 10.0, {"torch": 20.0}, failed=unable))
    assert closing(report).count("onednn: it is raced in fp32, not in int8") == 1


def test_people_read_the_same_figures():
    report = judged(raced(37, 100.0, {"torch": 3000.0, "onednn": 150.0}, foreign=0.5), raced(64, 200.0, {"onednn": 250.0}),
                   tuning_seconds=60.0)  # fmt: skip
    names = ["torch", "onednn"]
    for row in report["rows"]:
        assert len(cells(row, names)) == len(header(names))
    assert cells(report["rows"][0], names)[4:8] == ["100.0", "3000", "150.0", "1.50x"]
    assert line(report["rows"][0]) == (
        "dense_n2304_k768 m=37 threads=1 cold: ours 100.0 us  torch 3000  onednn 150.0  [contended]"
    )
    text = "\n".join(closing(report))
    assert "1.250x the best peer" in text and "missing: zentorch" in text and "tuning pays after 1,200,000 calls" in text
    assert "200 ns over the bare foreign call" in text
