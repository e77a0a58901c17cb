"""Requests that a contender's process serves: prepare, aim, time. Nothing heavy is imported before its own library."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from haotuner.isolate.answers import MISSING, Job, Refusal
from haotuner.isolate.program import Program, Verb, described

PROGRAM = "haotuner.bench.child:contender"
DETAIL_LIMIT = 500  # characters of an error that go into a row


def contender(config: Mapping[str, Any]) -> Program:
    """One contender, by its ``spec`` and its ``setting``. It greets with ``version`` and ``alone``."""
    from haotuner.bench.contender import Setting, load

    try:
        loaded = load(config["spec"], Setting(**config["setting"]))
    except ImportError as error:
        raise Refusal("load", MISSING, _error_text(error)) from error
    except Exception as error:  # whatever a library raises while it loads is a row
        raise Refusal("load", "error", _error_text(error)) from error
    gc.disable()  # a collection inside a batch would be counted as the library's time
    stage = Stage(loaded)
    verbs = {
        "prepare": _verb(stage.prepare, "build"),
        "aim": _verb(stage.aim, "run"),
        "time": _verb(stage.time, "run"),
        "crowding": _verb(stage.crowding, "run"),
        "overhead": _verb(stage.overhead, "run"),
    }
    return Program(verbs=verbs, greeting={"version": loaded.version, "alone": loaded.alone})


class Stage:
    """One contender and what it is aimed at."""

    def __init__(self, contender: Any) -> None:
        self._contender = contender
        self._op: Any = None
        self._copies: Sequence[Any] = ()
        self._cases: Sequence[Any] = ()
        self._y: Any = None
        self._clock: Any = None

    def prepare(self, op: str, shape: Mapping[str, int], count: int, seed: int) -> Job:
        """Draw copies of what a server binds, the same at any shape of the op, and let the contender prepare them."""
        from haotuner.bench.operands import copies
        from haotuner.spec.op import Op
        from haotuner.spec.shape import Shape

        self._clock, self._copies, self._cases = None, (), ()
        self._op = Op.parse(op)
        self._copies = copies(self._op, Shape.of(shape), count, seed)
        self._contender.prepare(self._op, self._copies)
        gc.collect()
        return {}

    def aim(self, shape: Mapping[str, int], count: int, seed: int, evicted: int = 0) -> Job:
        """Point the contender at a shape, check its results, and find out how long a call takes.

        ``count`` and ``evicted`` (bytes) are those of a ``Rotation``; a contender's own clock evicts nothing.
        """
        from haotuner.bench.check import error_share
        from haotuner.bench.operands import calls, result_of
        from haotuner.bench.timing import Clock
        from haotuner.spec.shape import Shape

        self._clock = None  # it may hold a graph of the last shape's operands
        cases = calls(self._op, Shape.of(shape), seed, self._copies, count)
        y = result_of(self._op, Shape.of(shape))
        timed = self._contender.aim([case.operands for case in cases], y)
        self._cases, self._y = cases, y  # the last ones go when nothing points at them any more
        checked = {0, count - 1} if hasattr(self._contender, "result") else set()  # the machine computes nothing
        share = max((error_share(cases[index], self._contender.result(index)) for index in checked), default=0.0)
        if share > 1:
            raise Refusal("verify", "wrong", f"error {share:.3g} times the tolerance of sums in fp32")
        own = getattr(self._contender, "clock", None)
        self._clock = own(timed) if own is not None else Clock(timed, evicted)
        block = self._clock.block(0.0)
        plan = getattr(self._contender, "plan", lambda _: "")(shape)
        work = {name: getattr(self._contender, name, None) for name in ("flops", "bytes")}  # only the machine's is known
        return {"unit_us": block.call_ns / 1e3, "error_share": share, "plan": plan, **work}

    def time(self, seconds: float) -> Job:
        """One block."""
        block = self._clock.block(seconds)
        return {"us": block.call_ns / 1e3 / self._contender.width, "calls": block.calls}

    def crowding(self) -> Job:
        """Slowdown of threads that share a core just now, a factor; only the machine knows."""
        return {"crowding": self._contender.crowding()}

    def overhead(self, seconds: float) -> Job:
        """Cost of a call over the bare foreign call, in ns; only ours knows."""
        return {"overhead_ns": self._contender.overhead_ns(seconds)}


def _verb(method: Callable[..., Job], stage: str) -> Verb:
    """A method that takes a request's fields; what it raises is a failure of ``stage``."""

    def verb(job: Job) -> Job:
        try:
            return method(**job)
        except (Refusal, MemoryError):
            raise
        except Exception as error:  # whatever a library raises is a row
            raise Refusal(stage, "error", _error_text(error)) from error

    return verb


def _error_text(error: BaseException) -> str:
    return described(error)[:DETAIL_LIMIT]
