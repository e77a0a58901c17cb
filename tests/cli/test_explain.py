"""`haotuner explain`: every way to share, like compared with like, no call that is too large to look at."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from haotuner.backends.cpu.backend import rows_of
from haotuner.cli import call_time, explain, explain_op
from haotuner.cli.call_time import why_not_timed
from haotuner.cli.explain import runner_up
from haotuner.cli.explain_op import placed_cell_document, print_cell, print_program, program_document, share_of_call
from haotuner.errors import UsageError
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.microkernels.index import families_for
from haotuner.pack.op import PackAxis, PackOp, PackOperand
from haotuner.plan.compose import Curve, alternatives
from haotuner.spec.cold import CPU_CACHES
from haotuner.spec.composition import WAYS, Composition
from haotuner.spec.limits import FOLD_LEAST
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.cli.command import haotuner
from tests.cost.cost_examples import BIG_CORE
from tests.runtime.packs import put_manifest

Tuned = tuple[Path, Any]
ONE, FOUR = "cpu_dense__mr1_nr16", "cpu_dense__mr4_nr16"
ROWS = {ONE: 1, FOUR: 4}


def packed(n: int, k: int, panels: int = 1) -> PackOp:
    """A dense op with two kernels, tuned for 1 to 256 rows on two threads."""
    return PackOp(
        name=f"dense_n{n}_k{k}", kind="dense",
        axes=(PackAxis(name="m", extent=None, last=256), PackAxis(name="n", extent=n), PackAxis(name="k", extent=k)),
        operands=(
            PackOperand(name="x", role="input", dims=("m", "k"), dtype="fp32"),
            PackOperand(name="weight", role="constant", dims=("n", "k"), dtype="fp32", packed={"pw": 16, "panels": panels}),
            PackOperand(name="y", role="output", dims=("m", "n"), dtype="fp32"),
        ),
        kernels=(ONE, FOUR), tiles=({"m": 1, "n": 16}, {"m": 4, "n": 16}), threads=(2,),
    )  # fmt: skip


NARROW = packed(16, 4096)


def stored(scale: float = 1.0) -> list[dict[str, Any]]:
    return [
        {"kernel": ONE, "lead_us": [[1, 10.0 * scale], [8, 80.0 * scale]], "follow_us": 9.0 * scale},
        {"kernel": FOUR, "lead_us": [[1, 20.0 * scale], [8, 150.0 * scale]], "follow_us": 18.0 * scale},
    ]


def plan(**more: Any) -> dict[str, Any]:
    return {"curves": {"k": stored(0.6), "n": stored(0.8), "m": stored(), "serial": stored()}, **more}


def document(way: str, second: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "op": "dense_n16_k4096", "shape": {"m": 1}, "threads": 2, "split": way, "weights": "cold", "unverified": False,
        "in_range": True, "regions": [{"kernel": ONE, "box": {}, "m": [0, 1], "n": [0, 16]}], "predicted_us": 6.0,
        "measured_us": 6.5, "not_timed": "", "runner_up": second,
    }  # fmt: skip


def print_plan(facts: dict[str, Any]) -> None:
    explain._print_plan(facts)
    explain._print_times(facts)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_share_has_its_words(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"composition": f"{ONE}*1", "split": way, "us": 7.0, "chosen_us": 6.0, "from": "predicted"}
    print_plan(document(way, other))
    output = capsys.readouterr().out
    assert output.count(WAYS[way]) == 2 and "runner-up" in output


@pytest.mark.parametrize(
    "us, source, message",
    [
        (5.2, "measured", "4.0% behind"),
        (4.95, "measured", "within noise of it: one launch goes before parts of a sum, these before two regions"),
        (4.0, "predicted", "only predicted, the kept one is measured: the two do not compare"),
    ],
)
def test_what_else_was_weighed_on_a_device_says_why_it_was_not_kept(
    us: float, source: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {"way": "one region", "composition": f"{ONE}*1", "us": 5.0, "from": "measured"}
    other = {"way": "sum in parts", "composition": f"{ONE}*1@k2", "us": us, "from": source}
    more = {"cell": [1, 4], "launches": 1, "workspace_bytes": 0, "considered": [chosen, other]}
    explain_op.print_device(document("serial", None) | more)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith("kept")] and [line for line in lines if line.endswith(message)]


def test_a_pack_that_shares_terms_names_its_runner_up() -> None:
    alternative = runner_up(plan(), 1, Composition.of(ONE, 1, "k"), ROWS)
    assert alternative == {"composition": f"{ONE}*1", "split": "n", "us": 8.0, "chosen_us": 6.0, "from": "predicted"}


def test_a_way_that_is_not_used_for_so_many_rows_is_no_runner_up() -> None:
    def second(m: int) -> str:
        alternative = runner_up(
            plan(), m, Composition.of(FOUR, m // 4, "n"), ROWS, lambda way: rows_of(way, Op.parse(NARROW.name), 2, m) >= m
        )
        assert alternative is not None
        return str(alternative["split"])

    assert second(8) == "k"
    assert second(4096) != "k", "parts of so many rows do not fit the memory of partial sums"


@pytest.mark.parametrize("m", [1, 3, 4, 7, 9, 64])
def test_what_curves_say_of_the_chosen_one_is_what_chose_it(m: int) -> None:
    curves = [
        Curve.of(c["kernel"], rows, dict(c["lead_us"]), c["follow_us"]) for c, rows in zip(stored(), (1, 4), strict=True)
    ]
    (choice,) = alternatives(curves, m, 1, "m")
    alternative = runner_up(plan(), m, choice.composition, ROWS)
    # Two regions of one kernel are told as one, whose second part costs as much as the first.
    assert alternative is not None and alternative["chosen_us"] == pytest.approx(choice.us, rel=0.08)


def test_measured_times_are_compared_with_measured_times() -> None:
    times = {f"{ONE}*1@n": 11.0, f"{ONE}*1@k": 12.0, f"{ONE}*1@serial": 10.5}
    alternative = runner_up(plan(measured_us={"1": times}), 1, Composition.of(ONE, 1, "n"), ROWS)
    assert alternative == {"composition": f"{ONE}*1", "split": "serial", "us": 10.5, "chosen_us": 11.0, "from": "measured"}


def test_a_runner_up_that_looks_faster_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for source, message in (("measured", "the plan also weighs the curves"), ("predicted", "curves err")):
        other = {"composition": f"{ONE}*1", "split": "n", "us": 5.0, "chosen_us": 6.0, "from": source}
        print_plan(document("k", other))
        assert message in capsys.readouterr().out
    print_plan(document("k", other) | {"in_range": False})
    assert "made for other shapes" in capsys.readouterr().out
    print_plan(document("k", {**other, "chosen_us": None}))
    assert "do not compare" in capsys.readouterr().out


def test_regions_are_boxes(tuned: Tuned, cache: Path) -> None:
    words = ("explain", "pack", "--op", "dense_n48_k32", "--shape", "m=7", "--json")
    explained = haotuner(*words, cache=cache, cwd=tuned[0]).json()
    for region in explained["regions"]:
        assert region["box"] == {"m": region["m"], "n": region["n"]}
    other = explained["runner_up"]  # nothing else was timed where tuning had no time for it
    assert explained["not_timed"] == "" and (other is None or {"us", "chosen_us", "from"} <= other.keys())


def test_a_pack_s_only_op_needs_no_name_and_a_shape_is_asked_for(tuned: Tuned, cache: Path) -> None:
    assert haotuner("explain", "pack", "--shape", "m=7", "--json", cache=cache, cwd=tuned[0]).json()["op"] == "dense_n48_k32"
    lacking = haotuner("explain", "pack", cache=cache, cwd=tuned[0])
    assert (
        lacking.code == 2 and '--op dense_n48_k32 --shape "m=1"' in lacking.err and "pack has dense_n48_k32" in lacking.err
    )


def test_one_of_several_is_named_and_all_are_listed() -> None:
    pack: Any = SimpleNamespace(ops=(packed(48, 32), replace(packed(48, 32), name="other")), models={"net": None})
    with pytest.raises(UsageError, match=r'--shape "m=1", or a whole model, --model net; p has dense_n48_k32, other, net'):
        explain._op_and_shape(Path("p"), "", "m=7", pack)


@pytest.mark.parametrize("m", [2**31 - 1, 500_000_000])
def test_a_call_that_no_memory_holds_is_explained_and_not_timed(tuned: Tuned, cache: Path, m: int) -> None:
    words = ("explain", "pack", "--op", "dense_n48_k32", "--shape", f"m={m}")
    answer = haotuner(*words, cache=cache, cwd=tuned[0])
    assert answer.code == 0 and "GiB, and explain times calls of up to" in answer.out
    explained = haotuner(*words, "--json", cache=cache, cwd=tuned[0]).json()
    assert explained["measured_us"] is None and explained["predicted_us"] > 0 and "GiB" in explained["not_timed"]
    assert explained["regions"][-1]["m"][1] == m


def test_what_is_timed_is_small_enough() -> None:
    assert why_not_timed(NARROW, 256) == ""
    assert "GFLOP" in why_not_timed(packed(16384, 16384, 1024), 8192)


@pytest.mark.parametrize(("cache", "look_s", "bound", "timed"), [(4 << 20, 600.0, 8, 8), (256 << 10, 0.0, 4, 5)])
def test_small_cold_weights_are_a_few_and_each_is_timed_once(
    monkeypatch: pytest.MonkeyPatch, cache: int, look_s: float, bound: int, timed: int
) -> None:
    monkeypatch.setattr(call_time, "MOST_WEIGHTS", 8)
    monkeypatch.setattr(call_time, "LOOK_S", look_s)
    written = []
    monkeypatch.setattr("haotuner.cli.call_time.np.ones", lambda size, dtype: written.append(size))
    calls: list[int] = []

    def bind(weight: Any) -> Any:
        index = len(calls)
        calls.append(0)

        def linear(x: Any, out: Any) -> None:
            calls[index] += 1

        return linear

    pack: Any = SimpleNamespace(op=lambda name: SimpleNamespace(bind=bind))
    assert call_time.call_us(pack, NARROW, 2, "cold", cache) > 0
    assert len(calls) == bound and sum(calls) == bound + timed
    assert written == [CPU_CACHES * cache - bound * 16 * 4096 * 4], "the first calls' weights leave the cache"
    if bound == 8:
        assert set(calls) == {2}


def test_facts_of_another_type_are_an_invalid_pack(tuned: Tuned, cache: Path, tmp_path: Path) -> None:
    for change in ({"plans": 7}, {"plans": {"1": {"predicted_us": {"a": 1}}}}, {"plans": {"1": {"curves": [1]}}}):
        shutil.rmtree(tmp_path / "pack", ignore_errors=True)
        shutil.copytree(tuned[0] / "pack", tmp_path / "pack")
        written = json.loads((tmp_path / "pack" / "manifest.json").read_text())
        written["ops"][0]["facts"].update(change)
        put_manifest(tmp_path / "pack", json.dumps(written).encode())
        answer = haotuner("explain", "pack", "--op", "dense_n48_k32", "--shape", "m=7", cache=cache, cwd=tmp_path)
        assert answer.code == 5, answer.err
        assert "Traceback" not in answer.err


def test_a_generated_program_tells_its_decisions_and_its_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    kernel, op = "cpu_generated_softmax_fp32__vl16_u4_ax2_kp1", Op.parse("softmax")
    program = program_document(kernel, op, Shape.of(m=8, n=64), BIG_CORE)
    assert program is not None
    print_program(program)
    output = capsys.readouterr().out
    assert "16 lanes along axis n\n" in output, "what threads share is the plan's to say: rows, or columns"
    assert "(exp) kept in the output's row" in output
    assert program["bytes"]["least"] == 2 * 4 * 8 * 64 and program["bytes"]["registers"] == 5 * 4 * 8 * 64
    assert program_document("cpu_dense_fp32__mr6_nr64", op, Shape.of(m=8, n=64), BIG_CORE) is None
    (family,) = (family for family in families_for(Op.parse("reduce_sum"), "cpu") if isinstance(family, CpuGenerated))
    shared = {family.decisions(kernel)["parallel"] for kernel in family.points(Op.parse("reduce_sum"), BIG_CORE)}
    assert shared and all("threads may share parts of n (joined by sum)" in words for words in shared)


def test_one_row_that_the_runtime_cuts_is_told_as_cut() -> None:
    kernel, op = "cpu_generated_reduce_sum_fp32__vl16_u4_ax0_kp0_oa0", Op.parse("reduce_sum")

    def told(m: int, n: int, share: str, threads: int = 2) -> str:
        return share_of_call(kernel, op, Shape.of(m=m, n=n), share, threads)

    assert told(1, FOLD_LEAST, "m") == "n" and told(8, FOLD_LEAST, "n") == "n"
    assert told(2, FOLD_LEAST, "m") == told(1, FOLD_LEAST - 1, "m") == "m"
    assert told(1, FOLD_LEAST, "serial") == "serial" and told(1, FOLD_LEAST, "m", threads=1) == "m"
    assert share_of_call("cpu_dense_fp32__mr6_nr64", op, Shape.of(m=1, n=FOLD_LEAST), "m", 2) == "m"


def test_cells_are_found_by_the_op_s_order_of_axes_whatever_the_manifest_s_is():
    few, many = (f"cuda_generated_attention_bf16__vl32_al{along}_d64@serial" for along in (1, 3))
    cells = {"bounds": {"b": [8], "s": [1, 1024], "t": [1, 1024]}, "entries": [few, few, many, many]}  # of b, t, s
    axes = [PackAxis(name=name, extent=None, last=1024) for name in "bts"]
    entry: Any = SimpleNamespace(
        name="attention_d64_bf16", op=Op.parse("attention_d64_bf16"), kind="attention", threads=(1,),
        facts={"plans": {"1": {"cells": cells}}},
        dynamic=axes, output_indices=False, group="",
    )  # fmt: skip
    manifest: Any = SimpleNamespace(unverified=True, tuning={"weights": "hot"})
    for t, s, label in ((1, 1000, few), (1000, 1, many)):
        regions = placed_cell_document(manifest, entry, {"b": 3, "t": t, "s": s})["regions"]
        assert [region["kernel"] for region in regions] == [label.partition("@")[0]], (t, s)


@pytest.mark.parametrize(
    ("measured", "expected", "whence"),
    [((4.0, 5.0), (), "measured"), ((), (4.0, 5.0), "predicted"), ((4.0,), (5.0,), "predicted")],
)
def test_what_nobody_timed_is_not_said_to_be_timed(measured, expected, whence, capsys):
    labels = [f"cuda_generated_attention_bf16__vl32_al{along}_d64@serial" for along in (1, 3)]
    times = dict(zip(labels, measured, strict=False)), dict(zip(reversed(labels), reversed(expected), strict=False))
    plan = {"cells": {"bounds": {"b": [8], "s": [9], "t": [9]}, "entries": labels[:1]}}
    plan |= {f"{name}_us": {"b=3;s=9;t=9": us} for name, us in zip(("measured", "expected"), times, strict=True) if us}
    entry: Any = SimpleNamespace(
        name="attention_d64_bf16", op=Op.parse("attention_d64_bf16"), kind="attention", threads=(1,),
        facts={"plans": {"1": plan}}, output_indices=False,
        group="", dynamic=[PackAxis(name=name, extent=None, last=9) for name in "bts"],
    )  # fmt: skip
    manifest: Any = SimpleNamespace(unverified=not measured, tuning={"weights": "hot"})
    cell = placed_cell_document(manifest, entry, {"b": 3, "t": 9, "s": 8})
    assert (cell["runner_up"]["us"], cell["runner_up"]["chosen_us"], cell["runner_up"]["from"]) == (5.0, 4.0, whence)
    print_cell(cell)
    assert ("expected, not timed" in "".join(capsys.readouterr())) == (whence == "predicted")
