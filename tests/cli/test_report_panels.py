"""Panels of plans by cells and of models, from facts made by hand: what is drawn is what they say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.cli.pages.figures import COLOURS, cleaned, labels_of, us_text
from haotuner.cli.pages.model_panels import graph, group_figure, prediction_figure, race_figure, timeline
from haotuner.cli.pages.op_panels import KERNELS_SHOWN, OpPlan, funnel_figure, kernel_map, regret_figure, time_figure
from haotuner.cli.pages.overview_panels import speed_figure
from haotuner.cli.pages.sources import MODEL_RACE, PREDICTIONS, RACE, PackSource, Sources
from haotuner.pack.op import PackAxis, PackOp
from haotuner.runtime.schedule import ExecutionPlan
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

DEVICE = {
    "id": "cpu-test", "kind": "cpu", "name": "a CPU", "arch": "x86-64-v3", "compute_units": 2, "wave_width": 8,
    "registers_per_thread": 16, "fma_pipes": 2, "memory_gbps": 10.0, "peak_gflops": 100.0,
}  # fmt: skip
CALLS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(1, 100), min_size=2)


def plan_of(bounds: dict[str, list[int]], entries: list[str], **facts: Any) -> OpPlan:
    """A plan by cells of ``batch_matmul_k64``."""
    cells = {"bounds": bounds, "entries": entries}
    axes = tuple(PackAxis(name=axis, extent=None, first=1, last=ends[-1]) for axis, ends in bounds.items())
    kernels = tuple(dict.fromkeys(entry.partition("@")[0] for entry in entries))
    entry = PackOp(name="batch_matmul_k64", kind="batch_matmul", axes=axes, operands=(), kernels=kernels,
                   tiles=tuple({} for _ in kernels), threads=(1,),
                   facts={"plans": {"1": {"cells": cells, **facts}}})  # fmt: skip
    manifest: Any = SimpleNamespace(document={"device": DEVICE}, on_device=False)
    return OpPlan(PackSource(Path("pack"), "", manifest, None), entry, 1, Op.parse("batch_matmul:k=64"))


def test_a_map_has_the_kernel_of_each_cell() -> None:
    bounds = {"b": [4], "m": [8, 64], "n": [8, 16, 32]}
    entries = ["f__a@serial", "f__a@serial", "f__b@serial", "f__b@serial", "f__c@serial", "f__c@serial"]
    plan = plan_of(bounds, entries)
    heat, *legend = kernel_map(plan)["data"]
    assert (heat["x"], heat["y"], heat["z"]) == (["8", "16", "32"], ["8", "64"], [[0, 0, 1], [1, 2, 2]])
    assert [trace["name"] for trace in legend] == ["a", "b", "c"]
    assert [edge for edge, _ in heat["colorscale"]] == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1])
    assert "f__b@serial" in heat["text"][1][0] and kernel_map(plan)["layout"]["xaxis"]["title"]["text"].endswith("b=4")


def test_kernels_beyond_the_colours_share_the_last() -> None:
    names = [f"f__k{at}@serial" for at in range(20)]
    heat, *legend = kernel_map(plan_of({"b": [1], "m": list(range(1, 5)), "n": list(range(1, 6))}, names))["data"]
    assert max(cell for row in heat["z"] for cell in row) == KERNELS_SHOWN == len(COLOURS) - 1
    assert legend[-1]["name"] == f"{20 - KERNELS_SHOWN} more"


def test_a_long_axis_of_a_map_is_spread() -> None:
    ends = list(range(1, 1001))
    heat = kernel_map(plan_of({"b": [1], "m": ends, "n": [1, 2]}, ["f__a@serial"] * 2000))["data"][0]
    assert len(heat["x"]) * len(heat["y"]) <= 300 and {"1", "1000"} <= {*heat["x"], *heat["y"]}


def test_times_of_cells_are_those_of_what_serves() -> None:
    shape = "b=1;m=8;n=8"
    plan = plan_of(
        {"b": [4], "m": [8], "n": [8]}, ["f__a@serial"],
        measured_us={shape: {"f__a@serial": 5.0, "f__b@serial": 4.0}},
        expected_us={"b=4;m=8;n=8": {"f__a@serial": 18.0, "f__b@serial": 20.0}},
    )  # fmt: skip
    drawn = time_figure(plan, [])
    assert drawn is not None
    lines = {trace["name"]: trace for trace in drawn["data"]}
    flops = Op.parse("batch_matmul:k=64").flops(Shape.of(b=1, m=8, n=8)) / 1e6
    assert lines["plan, as expected"]["x"] == pytest.approx([flops, 4 * flops])
    assert lines["plan, as expected"]["y"] == [5.0, 18.0]
    assert lines["best timed while tuning"]["y"] == [4.0]
    assert all(us > 0 for us in lines["roofline"]["y"])
    lost = regret_figure(plan, [])
    assert lost is not None and lost["data"][0]["y"] == pytest.approx([25.0])
    assert regret_figure(plan_of({"b": [4], "m": [8], "n": [8]}, ["f__a@serial"]), []) is None


def test_a_funnel_has_every_stage_and_law() -> None:
    plan = plan_of({"b": [4], "m": [8], "n": [8]}, ["f__a@serial"])
    facts = {"funnel": "16,800 points → 2,819 legal → 512 on the frontier", "refused": {"sums": 10, "registers": 12060},
             "measured": 39, "plans": plan.entry.facts["plans"]}  # fmt: skip
    entry = PackOp(**{name: getattr(plan.entry, name) for name in ("name", "kind", "axes", "operands", "kernels", "tiles",
                                                                   "threads")}, facts=facts)  # fmt: skip
    drawn = funnel_figure(OpPlan(plan.source, entry, 1, plan.op))
    assert drawn is not None
    (trace,) = drawn["data"]
    assert dict(zip(trace["y"], trace["x"], strict=True)) == {
        "points": 16800, "refused: registers": 12060, "refused: sums": 10, "legal": 2819, "on the frontier": 512,
        "measured": 39, "in the pack": 1,
    }  # fmt: skip
    assert funnel_figure(plan) is None


def schedule(edges: list[tuple[str, ...]]) -> ExecutionPlan:
    """Steps that each make the first name of the others."""
    names = {name for edge in edges for name in edge}
    steps = [{"do": "loops", "group": at, "tensors": [*reads, makes]} for at, (makes, *reads) in enumerate(edges)]
    tensors = {name: {"dtype": "fp32", "shape": []} for name in names}
    ends = [{"name": "x", "tensor": "x", "dtype": "fp32", "shape": []}]
    document = {"name": "m", "dims": [], "sizes": [], "tensors": tensors, "weights": {}, "steps": steps, "inputs": ends,
                "outputs": [{**ends[0], "tensor": edges[-1][0]}]}  # fmt: skip
    return ExecutionPlan.of(json.dumps(document).encode(), "m.json")


@given(reads=st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=3), min_size=1, max_size=12))
def test_every_step_stands_behind_what_it_reads(reads: list[set[int]]) -> None:
    names = ["x"]
    edges: list[tuple[str, ...]] = []
    for at, indices in enumerate(reads):
        edges.append((f"t{at}", *dict.fromkeys(names[index % len(names)] for index in indices)))
        names.append(f"t{at}")
    lines, *nodes = graph(schedule(edges), {"group 0, plain loops": ["kernel"]})["data"]
    spots = [(x, y) for trace in nodes for x, y in zip(trace["x"], trace["y"], strict=True)]
    assert any("kernel" in text for trace in nodes for text in trace["text"])
    assert len(spots) == len(set(spots)) == len(edges) + 1, "no two steps lie on one another"
    ends = [x for x in lines["x"] if x is not None]
    assert len(ends) == 3 * sum(len(edge) - 1 for edge in edges)
    assert all(first < second for first, second in zip(ends[::3], ends[2::3], strict=True))


def test_attention_stands_behind_the_operands_of_its_views() -> None:
    plan = schedule([("q", "x"), ("k", "x"), ("y", "q", "k")])
    views = {"q": {"of": "q", "order": [0], "shape": [0]}, "k": {"of": "k", "order": [0], "shape": [0]}}
    step = {"do": "online", "op": "attention", "order": [0], "out": "y", "passed": {}, "views": views}
    lines, *nodes = graph(replace(plan, steps=(*plan.steps[:-1], step)), {})["data"]
    assert lines["x"] == [0, 0.5, 1, None] * 2 + [1, 1.5, 2, None] * 2
    assert {trace["name"]: trace["x"] for trace in nodes} == {"inputs": [0], "generated groups": [1, 1], "attention": [2]}
    assert len({trace["marker"]["color"] for trace in nodes}) == 3
    assert nodes[-1]["text"] == ["y\nattention\nreads q, k"], "who cannot see the lines reads them in the table"


def test_a_timeline_has_no_gaps() -> None:
    steps = [{"at": at, "segment": "m", "what": "w", "makes": "t", "us": us, "do": do}
             for at, us, do in ((2, 4.0, "dense"), (0, 1.0, "loops"), (1, 2.0, "dense"))]  # fmt: skip
    drawn = timeline({"model": "m", "shape": {"m": 3}, "call_us": 8.0, "steps": steps})
    assert [trace["name"] for trace in drawn["data"]] == ["generated groups, 14%", "dense, 86%"]
    spans = sorted((base, base + us) for trace in drawn["data"] for base, us in zip(trace["base"], trace["x"], strict=True))
    assert spans == [(0.0, 1.0), (1.0, 3.0), (3.0, 7.0)]


def test_models_show_what_their_plan_and_their_times_say() -> None:
    regions = [{"outputs": ["y"], "chosen": [{"us": 1.0}, {"us": 2.0}], "greedy": [{"us": 9.0}]}]
    drawn = group_figure({"regions": regions})
    assert drawn is not None and [trace["x"] for trace in drawn["data"]] == [[3.0], [9.0]]
    assert group_figure({}) is None
    row = {"shape": {"m": 3}, "predicted_us": {"all": 5.0}, "measured_us": {"all": 6.0}, "call_us": 7.0}
    race = {"model": "m", "shape": {"m": 3}, "threads": 1, "first_us": 9.0, "steady_us": 4.0, "contended": False,
            "peers": {"onnxruntime": {"first_us": 9.0, "steady_us": 8.0}}}  # fmt: skip
    sources = Sources(documents=((PREDICTIONS, "p.json", {"model": "m", "threads": 1, "rows": [row]}),
                                 (MODEL_RACE, "r.json", {"rows": [race]})))  # fmt: skip
    figure = prediction_figure("m", {"predicted_us": {"1": {"m=3": {"all": 5.0}}}}, sources)
    assert figure is not None and [trace["x"] for trace in figure["data"]] == [[5.0], [6.0]]
    assert all(trace["y"] == ["m=3"] for trace in figure["data"])
    raced = race_figure("m", sources)
    assert raced is not None and {trace["name"]: trace["x"] for trace in raced["data"]} == {
        "ours": [4.0],
        "onnxruntime": [8.0],
    }
    assert race_figure("other", sources) is None


def test_numbers_and_texts_of_a_page_are_clean() -> None:
    assert cleaned({"a": float("nan"), "b": [1.23456789, True, None, b"\x00x"], "c\x1b": "d\u202e"}) == {
        "a": None, "b": [1.235, True, None, "b'\\x00x'"], "c\\x1b": "d\\u202e",
    }  # fmt: skip
    assert [us_text(us) for us in (0.1234, 999.0, 1500.0, 2.5e6)] == ["0.123 µs", "999 µs", "1.5 ms", "2.5 s"]


def test_a_kernel_is_labelled_by_what_is_its_own() -> None:
    names = ["cpu_dense__mr6_nr16_pw16", "cpu_dense__mr6_nr32_pw16", "cpu_dense__mr1_nr16_pw16"]
    assert list(labels_of(names).values()) == ["mr6 nr16", "mr6 nr32", "mr1 nr16"]
    assert labels_of(names[:1]) == {names[0]: "mr6 nr16 pw16"} and labels_of([]) == {}


def test_the_first_page_has_geometric_means_of_races() -> None:
    def row(m: int, peer: float, *, contended: bool = False) -> dict[str, Any]:
        return {"op": "a", "shape": {"m": m}, "threads": 1, "weights": "cold", "ours_us": 2.0, "contended": contended,
                "peers_us": {"torch": peer, "numpy": None}}  # fmt: skip

    rows = [row(1, 4.0), row(2, 16.0), row(3, 200.0, contended=True)]
    figure = speed_figure(Sources(documents=((RACE, "b.json", {"rows": rows}),)))
    assert figure is not None
    (torch,) = figure["data"]
    assert (torch["name"], torch["y"], torch["x"]) == ("torch", ["a, threads: 1"], [pytest.approx(4.0)])
    assert "over 2 shapes" in torch["text"][0] and "beside" not in torch["text"][0]
    busy = speed_figure(Sources(documents=((RACE, "b.json", {"rows": rows[2:]}),)))
    assert busy is not None and busy["data"][0]["x"] == [pytest.approx(100.0)]
    assert "over 1 shape, raced beside other programs" in busy["data"][0]["text"][0]
    assert speed_figure(Sources()) is None
