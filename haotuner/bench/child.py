"""A contender's process: answers requests, one JSON line each, in order. Imports nothing heavy before hello."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h
DETAIL_LIMIT = 500  # characters of an error that go into a row

Answer = dict[str, Any]


class Stage:
    """One contender and what it is aimed at."""

    def __init__(self, contender: Any) -> None:
        self._contender = contender
        self._op: Any = None
        self._weights: list[Any] = []
        self._x: Any = None
        self._clock: Any = None

    def prepare(self, op: str, count: int, seed: int) -> Answer:
        """Draw the weights of an op and let the contender prepare them."""
        from haotuner.bench.inputs import draw_weights
        from haotuner.words.op import Op

        self._clock, self._weights = None, []
        self._op = Op.parse(op)
        self._weights = draw_weights(self._op, count, seed)
        self._contender.prepare(self._op, self._weights)
        gc.collect()
        return {}

    def aim(self, m: int, count: int, seed: int) -> Answer:
        """Point the contender at a shape, check its results, and find out how long a call takes."""
        from haotuner.bench.inputs import draw_x, error_share
        from haotuner.bench.timing import Clock

        self._x = x = draw_x(self._op, m, seed)
        calls = self._contender.aim(x, count)
        share = 0.0
        checked = {0, count - 1} if hasattr(self._contender, "result") else set()  # the machine computes nothing
        for index in checked:
            share = max(share, error_share(x, self._weights[index], self._contender.result(index)))
        if share > 1:
            return {"failed": ["verify", "wrong", f"error {share:.3g} times the tolerance of fp32 arithmetic"]}
        self._clock = Clock(calls)
        block = self._clock.block(0.0)
        plan = getattr(self._contender, "plan", lambda _: "")(m)
        work = {name: getattr(self._contender, name, None) for name in ("flops", "bytes")}  # only the machine's is known
        return {"unit_us": block.call_ns / 1e3, "error_share": share, "plan": plan, **work}

    def time(self, seconds: float) -> Answer:
        """One block."""
        block = self._clock.block(seconds)
        return {"us": block.call_ns / 1e3 / self._contender.width, "calls": block.calls}

    def crowding(self) -> Answer:
        """Answer of a look at the cores: how far threads share one just now. Only the machine contender has it."""
        return {"crowding": self._contender.crowding()}

    def overhead(self, seconds: float) -> Answer:
        """Nanoseconds of a call over the bare foreign call. Only our own contender has them."""
        return {"overhead_ns": self._contender.overhead_ns(seconds)}


def main() -> None:
    """Entry: arguments are the spec of the contender, its setting as JSON, and the parent's process id."""
    spec, setting_text, parent = sys.argv[1:4]
    _die_with(int(parent))
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not look like an answer
    stage = _hello(spec, json.loads(setting_text), out)
    if stage is None:
        return
    gc.disable()  # a collection inside a batch would be counted as the library's time
    for line in sys.stdin:
        request: Answer = json.loads(line)
        print(json.dumps(_answer(stage, request)), file=out)


def _hello(spec: str, setting: Mapping[str, Any], out: Any) -> Stage | None:
    from haotuner.bench.contender import Setting, load

    try:
        contender = load(spec, Setting(**setting))
    except ImportError as error:
        print(json.dumps({"missing": _said(error)}), file=out)
        return None
    except Exception as error:  # the border of a process: whatever went wrong becomes an answer
        print(json.dumps({"failed": ["load", "error", _said(error)]}), file=out)
        return None
    print(json.dumps({"version": contender.version, "alone": contender.alone}), file=out)
    return Stage(contender)


def _answer(stage: Stage, request: Answer) -> Answer:
    do = request.pop("do")
    try:
        found: Answer = getattr(stage, do)(**request)
    except MemoryError as error:
        return {"failed": ["run", "memory", _said(error)]}
    except Exception as error:  # the border of a process, as above
        return {"failed": ["build" if do == "prepare" else "run", "error", _said(error)]}
    return found


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:DETAIL_LIMIT]


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
