"""What Python decides of a sample: requests to the process that times, and what becomes of its answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from haotuner.backends.backend import LibrarySlot
from haotuner.backends.cpu.backend import CpuBackend
from haotuner.backends.cpu.timer import CpuTimer
from haotuner.backends.fingerprint import MEASURING, Policy
from haotuner.isolate.child import Child
from haotuner.spec.composition import SERIAL, Composition
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Trial
from haotuner.spec.shape import Shape
from tests.search.fake_lab import CORE

ANSWER = {"samples_us": [10.0, 11.0, 12.5], "memory_us": [2.0, 2.5, 2.25], "compute_us": [1.0, 1.5, 1.25],
          "together_us": [1.25, 1.5, 1.375]}  # fmt: skip
DENSE = "cpu_dense_fp32__mr4_nr32_pw16_ku1_vl16_pf0"
SOFTMAX = "cpu_generated_softmax_fp32__vl16_u1_ax2_kp0_fu111"
TRIALS: tuple[tuple[str, Composition, Shape, dict[str, Any]], ...] = (
    ("dense:n=512,k=256", Composition.of(DENSE, 2), Shape.of(m=8), {}),
    ("dense:n=512,k=256", Composition.of(DENSE, 1024), Shape.of(m=4096), {"cache": "hot"}),
    ("dense:n=512,k=256", Composition.of(DENSE, 16, "m"), Shape.of(m=64), {"threads": 2}),
    ("softmax:", Composition.of(SOFTMAX, share=SERIAL), Shape.of(m=32, n=512), {}),
    ("conv2d:c=16,f=32,r=3,s=3,pad=1", Composition.of("cpu_conv_fp32__cl0_mr4_nr32_pw32_ku1_vl16_pf0", share=SERIAL),
     Shape.of(b=1, h=14, w=14), {}),
)  # fmt: skip


class Answering:
    """A process that answers at once and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[Mapping[str, Any]] = []

    def ask(self, request: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]:
        self.requests.append({**request, "limit_s": limit_s})
        return ANSWER


def _digits(numbers: Iterable[float | str]) -> list[str]:
    """Nine digits: the last ones are the C library's."""
    return [f"{float(number):.9g}" for number in numbers]


def test_a_sample_is_what_it_was(golden: Any) -> None:
    """Where this differs: raise MEASURING of policy.py unless times stay comparable, then rewrite the golden."""
    process = Answering()
    timer = CpuTimer(CORE, Policy(), cast(Child, process), CpuBackend().family_of, seed=0)
    entries: list[Any] = [{"measuring": MEASURING, "cold bytes": Policy().cold_bytes(CORE)}]
    for text, composition, shape, more in TRIALS:
        op, slot = Op.parse(text), LibrarySlot(library="library.so", index=0)
        trial = Trial.of(op, composition, shape, **more)
        timed = timer.time(trial, op, composition, {part.kernel: slot for part in composition.parts}, 0.0)
        assert not isinstance(timed, Failed)
        entries += [*process.requests, {"samples us": _digits(timed[0].samples_us), "facts": _digits(timed[1].values())}]
        process.requests.clear()
    golden("\n".join(json.dumps(entry, sort_keys=True) for entry in entries) + "\n")
