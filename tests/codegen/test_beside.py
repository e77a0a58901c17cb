"""Programs with several outputs: what they write, what they move, which outputs are joined, and why others are not."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest

from haotuner.codegen.group import kinds_of
from haotuner.codegen.in_place import in_place
from haotuner.codegen.op_counter import count_ops, register_bytes
from haotuner.codegen.schedule import Schedule, describe, merges, planned
from haotuner.codegen.sibling_outputs import leading
from haotuner.errors import UsageError
from haotuner.graph.graph import Graph
from haotuner.graph.group import graph_named
from haotuner.graph.interpret import interpret
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.index import families_for
from haotuner.ops.groups import definition_of
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.codegen.groups_beside import K, M, N, deep, folds, joint, maps, mixed, norm
from tests.codegen.interpreter import run_all

SCHEDULES: dict[str, dict[str, Any]] = {
    "vectors": {"lanes": 4, "unroll": 2},
    "held": {"lanes": 4, "unroll": 2, "packed": 2, "peeled": True},
    "rows": {"lanes": 4, "unroll": 1, "rows": 2, "masked": False},
    "folds alone": {"lanes": 4, "unroll": 2, "lane_axis": -1},
    "stages": {"lanes": 4, "unroll": 2, "parts": 3},
}
SIZES = ((3, 7), (5, 33), (1, 1), (2, 0), (0, 4))


def ordered(graph: Graph, first: int) -> Graph:
    """The same graph with another output first."""
    outputs = graph.outputs
    return Graph(
        graph.inputs, (outputs[first], *outputs[:first], *outputs[first + 1 :]), graph.nodes, graph.types, graph.constants
    )


@pytest.mark.parametrize("graph", [ordered(norm(), 2), ordered(deep(), 1)], ids=["norm", "deep"])
@pytest.mark.parametrize("how", SCHEDULES)
def test_every_output_is_written_and_all_bytes_are_known(graph, how):
    rank = graph.types[graph.outputs[0]].rank
    plan = planned(graph, Schedule(**({"lane_axis": rank - 1} | SCHEDULES[how])))
    for m, n in SIZES:
        sizes = {"m": m, "n": n, "k": 2}
        rng = np.random.default_rng(m)
        inputs = {
            name: rng.standard_normal([sizes[str(extent)] for extent in graph.types[name].shape]).astype(np.float32)
            for name in graph.inputs
        }
        if how == "stages" and 0 in (m, n) or n == 0 and rank == 3:
            continue  # a program in parts is not asked for nothing; the greatest of nothing is no number
        outputs, machine = run_all(plan, inputs)
        for name, expected in interpret(graph, inputs).items():
            np.testing.assert_allclose(outputs[name], expected, rtol=2e-5, atol=2e-5, err_msg=f"{name} {m}x{n}")
        loaded, stored = register_bytes(count_ops(plan, {name: sizes[name] for name in graph.dimensions}))
        assert (machine.loaded, machine.stored) == (loaded, stored)
        if how != "stages":
            whole = {name: np.asarray(output).nbytes for name, output in outputs.items() if output.size}
            assert {name: size for name, size in stored.items() if size} == whole, "each element is written once"


def test_what_outputs_share_is_loaded_once():
    graph, schedule = ordered(norm(), 2), Schedule(lane_axis=1, lanes=4, unroll=2)
    alone = planned(Graph(graph.inputs, graph.outputs[:1], graph.nodes, graph.types, graph.constants), schedule)
    sizes = {"m": 5, "n": 24}
    together, single = (register_bytes(count_ops(plan, sizes))[0] for plan in (planned(graph, schedule), alone))
    assert together == single, "two passes fold, one writes: the others' sums and elements come with them"


def test_decisions_and_memory_of_several_outputs():
    plan = planned(ordered(norm(), 2), Schedule(lane_axis=1, lanes=4, unroll=2))
    assert (
        describe(plan)["written beside it"].split(", ")[1] == "map_1" or "once a row" in describe(plan)["written beside it"]
    )
    assert in_place(plan) == () and not merges(plan)
    assert merges(planned(maps(), Schedule(lane_axis=1, lanes=4, unroll=2)))
    for schedule in ({"cached": ("map",)}, {"tiles": (1, 1, 0)}):
        with pytest.raises(UsageError, match="keeps no tensor and has no tiles"):
            planned(ordered(norm(), 2), Schedule(lane_axis=1, lanes=4, unroll=1, **schedule))
    with pytest.raises(UsageError, match="has a row across the lanes"):
        planned(ordered(norm(), 2), Schedule(lane_axis=0, lanes=4, unroll=1))


def test_rows_of_points():
    assert leading((M, N), (M, N)) == 2 and leading((M, 1), (M, N)) == leading((M,), (M, N)) == 1
    assert leading((K, M), (K, M, N)) == 2 and leading((K,), (K, M, N)) == leading((K, 1, 1), (K, M, N)) == 1
    assert leading((N,), (M, N)) is leading((1,), (M, N)) is leading((1, N), (M, N)) is leading((M, N, 1), (M, N)) is None


def test_outputs_of_the_same_rows_are_one_kind():
    device = find_device("h200")
    for graph, parts in ((norm(), {1, 8, 32, 128}), (deep(), {1, 8, 32, 128}), (maps(), {1})):
        (op,) = joint(graph)
        (family,) = families_for(op, "cuda")
        assert isinstance(family, CudaGenerated)
        assert len(op.meaning.written) == len(graph.outputs) and sorted(definition(op)["places"]) == list(
            range(len(graph.outputs))
        )
        (host,) = families_for(op, "cpu")
        assert isinstance(host, CpuGenerated)
        kernels = list(islice(host.points(op, find_device("cpu:avx2", measure=False)), 6))
        assert kernels and not any(host.in_place(kernel) or host.joins(kernel) for kernel in kernels)
        points = list(family.points(op, device))
        assert {family.cut(point).parts for point in points} == parts and not any(family.in_place(point) for point in points)
        shape = Shape.of(dict.fromkeys(op.dynamic, 6))
        inputs = numerics.draw(op, shape, np.random.default_rng(0))
        least = family.bytes_by_level(points[0], op.extents(shape), device)["least"]
        outputs = {name: np.asarray(output, np.float32) for name, output in interpret(graph_named(op.kind), inputs).items()}
        assert least == op.least_bytes(shape) == sum(array.nbytes for array in (*inputs.values(), *outputs.values()))
        case = CallCase(op, shape, inputs)
        assert not case.verdict(outputs).wrong
        for name in outputs:  # whichever is off is seen
            off = outputs | {name: outputs[name] + np.float32(0.5)}
            assert case.verdict(off).wrong, name


def definition(op: Op) -> dict[str, Any]:
    return dict(json.loads(definition_of(op.kind)))


def test_what_stays_apart_says_why():
    ops = joint(mixed())
    reasons = {tuple(definition(op)["places"]): definition(op)["apart"] for op in ops}
    assert set(reasons) == {(1,), (2, 0), (3,), (4,)}
    assert not reasons[2, 0] and "others across" in reasons[(1,)]
    assert "tiles of its own" in reasons[(3,)] and "lies over other points" in reasons[(4,)]
    assert [len(op.meaning.written) for op in ops] == [2, 1, 1, 1], "in the order of the file's first of each"
    alone = joint(folds())
    assert len(alone) == 2 and all("blocks share the fold" in definition(op)["apart"] for op in alone)


def test_a_device_without_such_kernels_has_an_op_for_each_output():
    apart = kinds_of(norm(), "many")
    assert kinds_of(norm(), "many", lambda kind: False) == apart and len(apart) == 5
    assert all("places" not in json.loads(definition_of(kind.name)) for kind in apart)
