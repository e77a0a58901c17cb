"""Changed models and odd feeds through reading, planning, plain loops in C under ASan and UBSan, and a served pack.

``python -m tests.runtime.fuzz_models [--seed N] [--minutes M] [--cases C] [--keep FOLDER]``.

Models are ONNX's own node cases and a few small nets, changed (``model_changes.py``). A finding is: an error that is none of
haotuner's own, a reading that takes ``READING_S`` of processor time, a process that ends, a sanitizer's word, or, for feeds
without oddities, an answer other than the interpreter's or ONNX Runtime's (without its optimiser). Each is printed with the
seed that makes it again. Exit status 1 where there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import HaotunerError
from haotuner.frontends.onnx.read import read
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from tests.runtime.model_changes import changed, fed, pick
from tests.runtime.small_nets import nets

BATCH = 24  # models of one library
FEEDS = 6  # of each model; every other one is tame
READING_S = 30  # of processor time, of one model
ROOM = 8 << 30  # of address space while models are read
LARGEST = 1 << 28  # bytes of working memory of a request that is tried
SANITIZED = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4000:detect_odr_violation=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


@dataclass(slots=True)
class Case:
    """A changed model that was read: its graph, feeds, and what the interpreter answers to the tame ones."""

    name: str
    file: Path
    graph: Graph
    feeds: list[dict[str, Any]] = field(default_factory=list)
    answers: list[list[Any] | None] = field(default_factory=list)
    written: Any = None


class TooSlow(Exception):
    """More processor time than a model may take to be read."""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """TooSlow after this much processor time of the process itself."""

    def over(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def bases() -> list[tuple[Any, dict[str, Any]]]:
    """Models and arrays for their inputs: ONNX's node cases of tensors, and small nets."""
    from tests.bench.onnx_nodes import cases, plain

    models = list(nets())
    for case in cases():
        arrays = {info.name: plain(value) for info, value in zip(case.model.graph.input, case.data_sets[0][0], strict=False)}
        if all(isinstance(array, np.ndarray) for array in arrays.values()):
            models.append((case.model, arrays))
    return models


class Fuzz:
    """Runs cases of one seed after another; ``findings`` in words, ``seen`` counts outcomes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.findings, self.seen = folder, list[str](), Counter[str]()
        self.bases = bases()

    def found(self, name: str, what: str) -> None:
        """One more finding."""
        self.seen["finding"] += 1
        self.findings.append(f"{name}: {what}")
        print(f"FOUND {name}: {what}", flush=True)

    def case(self, seed: int) -> Case | None:
        """The changed model of a seed as a graph with feeds; None where it is refused."""
        draw = np.random.default_rng(seed)
        base, arrays = pick(draw, self.bases) if draw.random() < 0.8 else pick(draw, self.bases[:NETS])
        model, name = changed(base, draw, arrays), f"case{seed}"
        raw = model.SerializeToString()
        if draw.random() < 0.03:
            raw = raw[: int(draw.integers(len(raw) + 1))]
        file = self.folder / f"{name}.onnx"
        file.write_bytes(raw)
        try:
            with limited(READING_S):
                case = Case(name, file, read(file))
                self._planned(case)
        except HaotunerError as error:
            self.seen["refused, bluntly" if "is damaged" in str(error) else "refused"] += 1
            if "is damaged" in str(error):
                print(f"  {name} {[node.op_type for node in model.graph.node][:3]}: {str(error)[-200:]}", flush=True)
            return None
        except TooSlow:
            self.found(name, f"more than {READING_S} s to read")
            return None
        except MemoryError:
            self.found(name, "memory ran out while it was read")
            return None
        except Exception as error:  # whatever it is, it is the finding
            import traceback

            last = traceback.extract_tb(error.__traceback__)[-3:]
            where = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in last)
            self.found(name, f"{type(error).__name__}: {str(error)[:300]} ({where})")
            return None
        self._feeds(case, draw, arrays)
        self.seen["read"] += 1
        return case if case.feeds else None

    def _planned(self, case: Case) -> None:
        from tests.runtime.model_packs import planned
        from tests.runtime.packs import LANES, best_level

        case.written = planned({case.name: case.graph}, LANES[best_level()], tuned=False, exact=False)

    def _feeds(self, case: Case, draw: Any, arrays: Any) -> None:
        for index in range(FEEDS):
            feed, answer = None, None
            try:
                with warnings.catch_warnings(), np.errstate(all="ignore"), limited(READING_S):
                    warnings.simplefilter("ignore")
                    feed = fed(case.graph, draw, arrays, tame=index % 2 == 0)
                    answer = list(interpret(case.graph, feed).values()) if index % 2 == 0 else None
            except Exception:  # what it should be is not known; whether it runs within its arrays is
                if feed is None:
                    continue
            case.feeds.append(feed)
            case.answers.append(answer)

    def batch(self, seeds: range) -> None:
        """Read, build and serve the models of these seeds, together."""
        ready = [case for case in map(self.case, seeds) if case is not None]
        if ready:
            self._together(ready)

    def _together(self, ready: list[Case]) -> None:
        from tests.runtime.native_builds import ASAN, c_pack

        ready = self._renumbered(ready)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        ops = {op.name: op for case in ready for op in case.written[2]}
        models = [model for case in ready for model in (*case.written[0], *case.written[1])]
        try:
            c_pack(folder / "pack", list(ops.values()), *ASAN, "-Wno-error", "-fwrapv", level="x86-64", models=models)
        except (AssertionError, subprocess.SubprocessError) as error:
            if len(ready) == 1:
                self.found(ready[0].name, f"does not build: {str(error)[:600]}")
                return
            for part in (ready[: len(ready) // 2], ready[len(ready) // 2 :]):
                self._together(part)
            return
        for case in ready:
            for index, feed in enumerate(case.feeds):
                np.savez(folder / f"{case.name}.{index}.npz", **{f"i{k}": feed[n] for k, n in enumerate(case.graph.inputs)})
        preload = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
        self._child("serve", folder, ready, {"LD_PRELOAD": preload.strip(), **SANITIZED})
        self._child("peer", folder, ready, {})
        for case in ready:
            self._compared(case, folder)

    def _renumbered(self, ready: list[Case]) -> list[Case]:
        """Functions of a library have numbers of their own: plan all of them together."""
        from tests.runtime.model_packs import planned
        from tests.runtime.packs import LANES, best_level

        models, chains, ops = planned(
            {case.name: case.graph for case in ready}, LANES[best_level()], tuned=False, exact=False
        )
        for case in ready:
            case.written = ([], [], [])
        ready[0].written = (models, chains, ops)
        return ready

    def _child(self, what: str, folder: Path, ready: list[Case], environment: dict[str, str]) -> None:
        """The requests in a process of its own; where it ends, that request is a finding and the next ones go on."""
        left = [(case, index) for case in ready for index in range(len(case.feeds))]
        while left:
            words = [f"{case.name} {index} {case.file}" for case, index in left]
            (folder / "wanted").write_text("\n".join(words))
            (folder / "at").write_text("-1")
            try:
                done = subprocess.run([sys.executable, "-m", "tests.runtime.fuzz_models", "--child", what, str(folder)],
                                      env={**os.environ, **environment}, capture_output=True, text=True, timeout=900,
                                      check=False, errors="replace", preexec_fn=_unlimited)  # fmt: skip
                code, message = done.returncode, done.stderr
            except subprocess.TimeoutExpired:
                code, message = -1, "hangs"
            if code == 0:
                return
            at = int((folder / "at").read_text())
            if at < 0:
                self.found(ready[0].name, f"{what}: the pack cannot be opened: {message[-1500:]}")
                return
            case, index = left[at]
            if what == "serve":
                self.found(case.name, f"feed {index}: status {code}: {_short(message)}")
            left = [request for request in left[at + 1 :] if request[0] is not case]

    def _compared(self, case: Case, folder: Path) -> None:
        for index, answer in enumerate(case.answers):
            ours = _outputs(folder / f"{case.name}.{index}.serve.npz")
            peer = _outputs(folder / f"{case.name}.{index}.peer.npz")
            self.seen["ran" if ours is not None else "refused feeds"] += 1
            if ours is None or index % 2:
                continue
            if answer is not None and (why := differs(ours, answer)):
                self.found(case.name, f"feed {index}: the pack and the interpreter: {why}")
            elif (
                peer is not None and all(array.size for array in case.feeds[index].values()) and (why := differs(ours, peer))
            ):
                self.found(case.name, f"feed {index}: the pack and ONNX Runtime: {why}")
            self.seen["as ONNX Runtime"] += peer is not None


NETS = len(nets())


def _unlimited() -> None:
    """A sanitizer's shadow takes more address space than models may."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _short(message: str) -> str:
    at = max(message.find("ERROR: AddressSanitizer"), message.find("runtime error"), 0)
    return message[max(at - 200, 0) : at + 1200] if at else message[-800:]


def _outputs(path: Path) -> list[Any] | None:
    if not path.exists():
        return None
    with np.load(path) as arrays:
        return [arrays[f"o{index}"] for index in range(len(arrays.files))]


def differs(ours: list[Any], theirs: list[Any]) -> str:
    """In words; empty where they agree to 1e-3 of the largest element."""
    for array, other in zip(ours, theirs, strict=False):
        if array.shape != other.shape or array.dtype.kind != other.dtype.kind:
            return f"{array.dtype}{array.shape} and {other.dtype}{other.shape}"
        if array.dtype.kind != "f":
            if not np.array_equal(array, other):
                return f"other elements: {array.reshape(-1)[:6]} and {other.reshape(-1)[:6]}"
            continue
        a, b = array.astype(np.float64), other.astype(np.float64)
        both = ~np.isfinite(a) & ~np.isfinite(b)  # 0 times infinity is not looked at everywhere in one order
        a, b = np.where(both, 0, a), np.where(both, 0, b)
        scale = np.max(np.abs(b[np.isfinite(b)]), initial=1e-3)
        tolerance = 2e-2 if array.dtype.itemsize == 2 else 1e-3
        if not np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            return f"{a.reshape(-1)[:6]} and {b.reshape(-1)[:6]}"
    return ""


def child(what: str, folder: Path) -> int:
    """Answers of the pack, or of ONNX Runtime, to the requests that ``wanted`` names, each into a file."""
    requests = [line.split(" ", 2) for line in (folder / "wanted").read_text().splitlines()]
    answer = _served(folder) if what == "serve" else _peer()
    for at, (name, index, file) in enumerate(requests):
        (folder / "at").write_text(str(at))
        with np.load(folder / f"{name}.{index}.npz") as arrays:
            inputs = [np.array(arrays[f"i{k}"]) for k in range(len(arrays.files))]
        outputs = answer(name, inputs, file)
        if outputs is not None:
            plain: list[Any] = [
                output.view(np.uint16) if output.dtype.kind == "V" else np.asarray(output) for output in outputs
            ]
            held_as: dict[str, Any] = {f"o{k}": array for k, array in enumerate(plain)}
            np.savez(folder / f"{name}.{index}.{what}.npz", **held_as)
    return 0


def _served(folder: Path) -> Any:
    import haotuner

    pack = haotuner.load(folder / "pack", threads=1)

    def answer(name: str, inputs: list[Any], _: str) -> Any:
        try:
            model = pack.model(name)
            ends = [end.name for end in model.inputs]
            if hasattr(model, "memory_bytes") and hasattr(model, "dims"):
                sizes = {dim: size for end, array in zip(model.inputs, inputs, strict=True)
                         for dim, size in zip(end.shape, array.shape, strict=True) if isinstance(dim, str)}  # fmt: skip
                if sizes.keys() == set(model.dims) and model.memory_bytes(**sizes) > LARGEST:
                    return None
            return list(model.run(dict(zip(ends, inputs, strict=True))).values())
        except (HaotunerError, MemoryError):
            return None

    return answer


def _peer() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    sessions: dict[str, Any] = {}

    def answer(name: str, inputs: list[Any], file: str) -> Any:
        try:
            if name not in sessions:
                sessions[name] = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
            session = sessions[name]
            ends = [end.name for end in session.get_inputs()]
            if len(ends) != len(inputs):  # an input that the graph does not need is left out of ours
                return None
            return session.run(None, dict(zip(ends, inputs, strict=True)))
        except Exception:  # ONNX Runtime refuses it: there is nothing to compare with
            return None

    return answer


def main() -> int:
    """Findings of so many minutes, or of so many cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--cases", type=int, default=1 << 30)
    parser.add_argument("--keep", type=Path, help="a folder for the models")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child[0], Path(options.child[1]))
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, resource.getrlimit(resource.RLIMIT_AS)[1]))
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        fuzz, until, at = Fuzz(folder), time.monotonic() + 60 * options.minutes, 0
        while at < options.cases and time.monotonic() < until:
            count = min(BATCH, options.cases - at)
            fuzz.batch(range(options.seed * 1_000_000 + at, options.seed * 1_000_000 + at + count))
            at += count
            print(f"{at} models: {dict(fuzz.seen)}", flush=True)
    print("\n".join(fuzz.findings) or "nothing found")
    return 1 if fuzz.findings else 0


if __name__ == "__main__":
    sys.exit(main())
