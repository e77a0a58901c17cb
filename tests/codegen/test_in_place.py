"""Outputs on their inputs: where a plan allows it, the program computes the same there, whatever order threads come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from haotuner.codegen.emit import emit
from haotuner.codegen.in_place import in_place
from haotuner.codegen.schedule import Plan, Schedule, keepable, planned
from haotuner.errors import UsageError
from tests.codegen.interpreter import Interpreter, run
from tests.codegen.test_generate import GROUPS, SIZES, drawn
from tests.codegen.test_moved import drawn_group, drawn_plan


class Backwards(Interpreter):
    """The same program with the outermost loop's rounds from the last to the first."""

    depth = 0

    def loop(self, count: Any, body: Callable[[Any], None]) -> None:
        """Run the body for each number, outermost ones backwards."""
        numbers = range(int(count)) if self.depth else reversed(range(int(count)))
        self.depth += 1
        for i in numbers:
            body(np.int64(i))
        self.depth -= 1


def over(plan: Plan, inputs: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, Any]:
    """The output on these inputs at once, which hold the same: with loops as they are, and backwards."""
    out = inputs[names[0]].copy()
    emit(plan, Backwards({**inputs, **dict.fromkeys(names, out), plan.output: out}, plan.graph.sizes(inputs)))
    return run(plan, inputs, over=names)[0], out


def checked(plan: Plan, sizes: dict[str, int]) -> bool:
    names, inputs = in_place(plan), drawn(plan.graph, sizes)
    if names:
        inputs |= dict.fromkeys(names, inputs[names[0]])
        apart = run(plan, inputs)[0]
        for output in over(plan, inputs, names):
            np.testing.assert_array_equal(output, apart)
    return bool(names)


def test_drawn_groups_are_the_same_in_place() -> None:
    allowed = [checked(drawn_plan(drawn_group(seed), plan_seed), {"m": 4, "n": 6, "k": 3})
               for seed in range(60) for plan_seed in range(2)]  # fmt: skip
    assert 15 < sum(allowed) < 90, "some allow it, some do not"


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "instance_norm", "bias_gelu"])
def test_every_schedule_of_a_row_is_the_same_in_place(name: str) -> None:
    graph = GROUPS[name]
    rank = graph.types[graph.outputs[0]].rank
    allowed: dict[int, list[bool]] = {}
    for axis in range(-1, rank):
        for tensors in ((), *((tensor,) for tensor in keepable(graph))):
            for rows, masked in ((1, True), (2, True), (1, False)):
                schedule = Schedule(lane_axis=axis, lanes=4, unroll=2, cached=tensors, rows=rows, masked=masked)
                try:
                    allowed.setdefault(axis, []).append(checked(planned(graph, schedule), SIZES))
                except UsageError:
                    continue
    assert any(allowed[rank - 1]), "rows along the lanes are read before they are written"


def test_what_is_read_later_is_not_allowed_and_would_be_wrong() -> None:
    for name, axis, tensors in (("softmax", 0, ()), ("layer_norm", 1, (keepable(GROUPS["layer_norm"])[1],))):
        plan = planned(GROUPS[name], Schedule(lane_axis=axis, lanes=4, unroll=1, cached=tensors))
        assert in_place(plan) == ()
        inputs = drawn(plan.graph, SIZES)
        assert not np.array_equal(run(plan, inputs, over=("x0",))[0], run(plan, inputs)[0]), name
    whole = GROUPS["transpose_add"]
    assert in_place(planned(whole, Schedule(lane_axis=1, lanes=4, unroll=1))) == ("x1",)
