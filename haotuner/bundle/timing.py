"""One kernel's time on one shape, by the policy; the result is checked before its time counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from haotuner.bundle import policy
from haotuner.bundle.kernels import Kernels
from haotuner.bundle.operands import ELEMENT_BYTES, POISON, Matrix, first_rows, place
from haotuner.bundle.probe import Probe
from haotuner.bundle.suites import Suite
from haotuner.bundle.trials import Task
from haotuner.isolate.answers import Refusal

GROWTH = 4096  # rows of X and Y that are placed at once at most; larger m places its own
WARM_SAMPLES = 16  # of the FMA loop, about 20 ms: the clock falls while operands are placed or a worker starts
PLAIN_LAUNCHES = 15  # on a subset, where graphs were not seen to stay inside


@dataclass(slots=True)
class _Layer:
    """Operands of one op, kept from task to task."""

    key: tuple[str, bool, int, int]
    rows: int
    x: Matrix
    y: Matrix
    weights: list[Matrix]


class Stopwatch:
    """Times tasks on one probe; keeps the last op's operands in device memory."""

    def __init__(self, probe: Probe, kernels: Kernels, suite: Suite) -> None:
        self._probe = probe
        self._kernels = kernels
        self._suite = suite
        self._layer: _Layer | None = None
        self._units = self._granted = self._seen = 0

    def forget(self) -> None:
        """Release the operands."""
        layer, self._layer = self._layer, None
        if layer is not None:
            for matrix in (layer.x, layer.y, *layer.weights):
                self._probe.release(matrix.base)

    def time(self, task: Task) -> Mapping[str, Any]:
        """Samples in microseconds, the error beside them, and how they were taken. Refusal for a wrong result."""
        layer = self._operands(task)
        x, y = self._rows(layer, task.extents[0])
        error = self._verified(task, x, layer.weights[0], y)
        once = self._launch_us(task, x, layer.weights[0], y)
        plan = policy.plan(cold=task.weights == "cold", weights=len(layer.weights), one_launch_us=once)
        with self._kernels.streamed(), self._probe.captured() as graph:
            function = self._kernels.function(task.kernel)
            tensors = [w.tensor() for w in layer.weights[: plan.weights]]
            x_tensor, y_tensor = x.tensor(), y.tensor()
            for launch in range(plan.launches):
                function(x_tensor, tensors[launch % len(tensors)], y_tensor)
        try:
            self._probe.replay_us(graph[0], 1)  # the first replay uploads the graph
            samples = [us / plan.launches for us in self._probe.replay_us(graph[0], plan.samples)]
        finally:
            self._probe.drop(graph[0])
        facts = {"launches": plan.launches, "weights": plan.weights, "how": "graph replay"}
        return _answer(samples, error, facts)

    def on_subset(self, task: Task) -> Mapping[str, Any]:
        """Times a task on fewer multiprocessors, by plain launches; the facts say how many really ran blocks."""
        if self._units != task.units:
            self._granted = self._probe.use_subset(task.units)
            self._seen = self._probe.units_seen()
            self._units = task.units
        layer = self._operands(task)
        x, y = self._rows(layer, task.extents[0])
        error = self._verified(task, x, layer.weights[0], y)
        samples = [
            self._launch_us(task, x, layer.weights[number % len(layer.weights)], y) for number in range(PLAIN_LAUNCHES)
        ]
        facts = {"units_granted": self._granted, "units_seen": self._seen, "how": "plain launches"}
        return _answer(samples, error, facts)

    def _operands(self, task: Task) -> _Layer:
        m, n, k = task.extents
        key = (task.dtype, task.kn, n, k)
        layer = self._layer
        if layer is not None and layer.key == key and layer.rows >= m:
            return layer
        self.forget()
        rows = max(m, min(GROWTH, max((r for w in self._suite.timed for r in w.rows), default=m)))
        weight_bytes = n * k * ELEMENT_BYTES[task.dtype]
        count = policy.weights_of(weight_bytes, int(self._probe.facts["l2_bytes"]), self._suite.rotation_bytes)
        placed: list[Matrix] = []
        try:
            placed.append(place(self._probe, rows, k, dtype=task.dtype))
            placed.append(place(self._probe, rows, n, dtype=task.dtype))
            for number in range(count):
                placed.append(place(self._probe, *((k, n) if task.kn else (n, k)), dtype=task.dtype))
                self._probe.fill(placed[-1].data, placed[-1].count, task.dtype, "spread", seed=2 + number)
            self._probe.fill(placed[0].data, placed[0].count, task.dtype, "spread", seed=1)
        except BaseException:
            for matrix in placed:
                self._probe.release(matrix.base)
            raise
        self._layer = _Layer(key=key, rows=rows, x=placed[0], y=placed[1], weights=placed[2:])
        self._probe.rates("fma", self._suite.peak_rounds, samples=WARM_SAMPLES)
        return self._layer

    def _rows(self, layer: _Layer, m: int) -> tuple[Matrix, Matrix]:
        return first_rows(layer.x, m), first_rows(layer.y, m)

    def _verified(self, task: Task, x: Matrix, w: Matrix, y: Matrix) -> float:
        """Error of the first, middle and last row after one launch on poison: cheap at any size. Refusal if it is wrong."""
        m, n, k = task.extents
        self._probe.set_bytes(y.data, POISON, y.size)
        with self._kernels.streamed():
            self._kernels.launch(task.kernel, x, w, y)
        self._probe.finish()
        worst = 0.0
        for row in sorted({0, m // 2, m - 1}):
            found = self._probe.compare(x.row(row), w.data, y.row(row), (1, n, k), (x.stride, y.stride), task.dtype, task.kn)
            worst = max(worst, found.max_error)
        if worst > 1.0:
            raise Refusal("verify", "wrong", f"{worst:.3g} times the tolerance")
        return worst

    def _launch_us(self, task: Task, x: Matrix, w: Matrix, y: Matrix) -> float:
        with self._kernels.streamed():
            self._probe.mark(0)
            self._kernels.launch(task.kernel, x, w, y)
            self._probe.mark(1)
        return self._probe.between_us()


def _answer(samples: list[float], error: float, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    if min(samples) <= 0.0:  # events lie where a clock steps back, or a virtual machine was moved
        raise Refusal("time", "unstable", f"events counted {min(samples)} us")
    return {"samples_us": samples, "max_error": error, "facts": facts}
