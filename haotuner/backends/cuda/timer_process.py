"""State of the timing process: loaded code and operands on the device. Verifies kernels, times compositions."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from haotuner.backends.cuda import batches, direct_calls, window_calls
from haotuner.backends.cuda.clocks import Clocks
from haotuner.backends.cuda.generated_calls import GeneratedOperands, verify_generated
from haotuner.backends.cuda.timing_library import ArgsWords, CallWords, DeviceScratch, Loaded, TimingLibrary, call_words
from haotuner.backends.cuda.verifying import Case, cases, check, deep_case, drawn
from haotuner.backends.timing_job import TimedPart, micro_kernel, op_of, parts_of
from haotuner.isolate.answers import Job, Refusal
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.direct import CudaDirect, direct_family
from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.microkernels.cuda.fused import CHANNELS, after_of, built_for
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.cuda.launch import reduce_symbol
from haotuner.microkernels.index import family_named
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.spec import numerics
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

MOST_LAUNCHES = 4096  # of a graph: its nodes take some 10 kB each
MOST_WEIGHT_BYTES = 8 << 30  # of cold weights; three L2s are far below
SLOWED_TRIES, SLOWED_PAUSE_S = 3, 0.5  # while the device throttles


class TimerProcess:
    """One device, or a part of one."""

    def __init__(self, ordinal: int, units: int = 0) -> None:
        self._library = TimingLibrary(ordinal, units)
        self._clocks = Clocks(ordinal)
        self._families = {family.name: family for family in CUDA_FAMILIES}
        self._modules: dict[str, int] = {}
        self._loaded: dict[tuple[str, str], Loaded] = {}
        self._operands: Operands | None = None

    @property
    def greeting(self) -> Job:
        """Facts of the device, as its driver says them."""
        facts = self._library.device
        return {"units": facts.units, "l2_bytes": facts.l2_bytes, "capability": facts.capability, "driver": facts.driver}

    def _generated(self, kernel: MicroKernel, library: str) -> tuple[Loaded, CudaGenerated]:
        """A kernel of an op that generated programs compute."""
        family = family_named(kernel.family)
        assert isinstance(family, CudaGenerated)
        return self._whole(kernel, library, family), family

    def _direct(self, kernel: MicroKernel, library: str) -> Loaded:
        """A kernel of a convolution without columns."""
        family = direct_family(kernel.family)
        assert family is not None
        return self._whole(kernel, library, family)

    def _whole(self, kernel: MicroKernel, library: str, family: CudaGenerated | CudaDirect) -> Loaded:
        """A kernel that is launched with words of its own, not with tiles of a product."""
        name = kernel.name
        if (library, name) not in self._loaded:
            launch = family.launch(kernel)
            self._loaded[library, name] = self._library.loaded(self._module(library), name, launch, family.dtype)
        return self._loaded[library, name]

    def _kernel(self, kernel: MicroKernel, library: str) -> tuple[Loaded, CudaDense]:
        family, name = self._families[kernel.family], kernel.name
        if (library, name) not in self._loaded:
            launch, kn = family.launch(kernel), family.reads_kn(kernel)
            self._loaded[library, name] = self._library.loaded(self._module(library), name, launch, family.dtype, kn=kn)
        return self._loaded[library, name], family

    def _module(self, library: str) -> int:
        if library not in self._modules:
            self._modules[library] = self._library.load(Path(library))
        return self._modules[library]

    def _reduce(self, library: str, dtype: str) -> int:
        return self._library.function(self._module(library), reduce_symbol(dtype))[0]

    def verify(self, job: Job) -> Job:
        """Check one kernel against float64; answers the largest error as a share of the tolerance."""
        op, kernel, library = op_of(job), micro_kernel(job["kernel"]), str(job["library"])
        if "_generated_" in kernel.family:
            program, of = self._generated(kernel, library)
            rng = np.random.default_rng(int(job["seed"]))
            return {"max_error": verify_generated(op, kernel, of, program, self._library, rng)}
        if direct_family(kernel.family) is not None:
            rng = np.random.default_rng(int(job["seed"]))
            return {"max_error": direct_calls.verify(op, kernel, self._direct(kernel, library), self._library, rng)}
        loaded, family = self._kernel(kernel, library)
        launch = family.launch(kernel)
        depth = family.tile(kernel).step["k"]
        rng, worst = np.random.default_rng(int(job["seed"])), 0.0
        if launch.windows:
            return {"max_error": window_calls.verify(op, loaded, self._library, rng, depth)}
        if launch.batch:
            steps = built_for(kernel)
            return {"max_error": batches.verify(op, loaded, launch, depth, self._library, rng, steps, family.signs)}
        reduce = self._reduce(library, family.dtype)
        for case in (*cases(op, launch, depth), deep_case(op, launch)):
            worst = max(worst, self._verify(case, loaded, reduce, rng))
        return {"max_error": worst}

    def _verify(self, case: Case, loaded: Loaded, reduce: int, rng: np.random.Generator) -> float:
        """One shape: poisoned and guarded output, NaN between the rows of x, NaN in the workspace."""
        native = self._library
        inputs, x, output = case.inputs(rng), case.padded(rng), numerics.Guarded((case.m, case.n), case.written)
        x[:, : case.k] = inputs["x"]
        size = DTYPE_BYTES[case.written]
        with DeviceScratch(native) as scratch:
            put = scratch.put
            at = put(output.outer)
            offset = ((output.outer.shape[1]) + numerics.GUARD) * size
            partial = 0
            if case.splits > 1:
                partial = scratch.poisoned(case.splits * case.m * case.n * 4)
            beside = {name: put(inputs[name]) for name in CHANNELS if name in inputs}
            if "residual" in inputs:  # its rows are as far apart as those of y
                rows = np.full(output.inner.shape[:1] + output.outer.shape[1:], np.nan, inputs["residual"].dtype)
                rows[:, : case.n] = inputs["residual"]
                beside["residual"] = put(rows)
            args = ArgsWords(
                x=put(x), **beside, y=at + offset, partial=partial, m=case.m, n=case.n, k=case.k, ldx=x.shape[1],
                ldy=output.outer.shape[1], splits=case.splits, **after_of(case.op),
            )  # fmt: skip
            weights = np.array([put(inputs["weight"])], np.uint64)
            ends = put(inputs["offsets"]) if case.ends else 0
            native.run(call_words([(loaded, case.m)], reduce, args, weights, ends, len(case.ends)))
            native.get(at, output.outer)
        return check(case, inputs, output)

    def time(self, job: Job) -> Job:
        """Samples in microseconds of one composition, and how they were taken; see ``timer.py`` for the job."""
        op, parts, m, splits = op_of(job), parts_of(job), int(job["m"]), int(job["splits"])
        if "shape" in job:
            return self._time_generated(op, parts, job)
        if "extents" in job:
            return self._time_batch(op, parts, job)
        if "image" in job:
            return self._time_direct(op, parts, job)
        regions: list[tuple[Loaded, int]] = []
        left = m
        for kernel, library, tiles in parts:
            loaded, _ = self._kernel(kernel, library)
            rows = min(tiles * loaded.words.tile_m, left) if tiles else left
            regions.append((loaded, rows))
            left -= rows
        if left or any(rows < 1 for _, rows in regions):
            raise Refusal("time", "error", f"the regions of {job['parts']} do not cover m={m} once each")
        operands = self._operands_of(op, m, int(job["cold_bytes"]), splits)
        reduce = self._reduce(parts[0][1], op.dtype) if splits > 1 else 0
        ends = operands.even_ends(m)
        call = call_words(regions, reduce, operands.args(op, m, splits), operands.weights, ends, operands.groups)
        return self._answer(regions[0][0], call, job, operands.count)

    def _time_batch(self, op: Op, parts: Sequence[TimedPart], job: Job) -> Job:
        """Samples of products side by side, in us: one launch of all matrices."""
        ((kernel, library, _),) = parts
        loaded, _ = self._kernel(kernel, library)
        with DeviceScratch(self._library) as scratch:
            operands = batches.BatchOperands(scratch, op, job["extents"])
            return self._answer(loaded, operands.call(loaded), job)

    def _time_direct(self, op: Op, parts: Sequence[TimedPart], job: Job) -> Job:
        """Samples of a convolution without columns, or of its windows where they lie, in us."""
        ((kernel, library, _),) = parts
        operands: direct_calls.DirectOperands | window_calls.WindowOperands
        with DeviceScratch(self._library) as scratch:
            if direct_family(kernel.family) is not None:
                loaded = self._direct(kernel, library)
                operands = direct_calls.DirectOperands(scratch, op, Shape.of(job["image"]))
            else:
                loaded, _ = self._kernel(kernel, library)
                operands = window_calls.WindowOperands(scratch, op, Shape.of(job["image"]))
            return self._answer(loaded, operands.call(loaded), job)

    def _time_generated(self, op: Op, parts: Sequence[TimedPart], job: Job) -> Job:
        """Samples of a generated program, in us."""
        ((kernel, library, _),) = parts
        loaded, family = self._generated(kernel, library)
        with DeviceScratch(self._library) as scratch:
            operands = GeneratedOperands(scratch, op, Shape.of(job["shape"]))
            return self._answer(loaded, operands.call(loaded, family, kernel), job)

    def _answer(self, loaded: Loaded, call: CallWords, job: Job, count: int = 1) -> Job:
        """Samples of a call, how they were taken, and facts of its first kernel; ``count``: weights that take turns."""
        samples, facts = self._sampled(call, job, count)
        return {"samples_us": samples, "facts": facts | _facts_of(loaded)}

    def _sampled(self, call: CallWords, job: Job, count: int) -> tuple[list[float], dict[str, float | str]]:
        """By the policy, in graphs; again where the device was slowed meanwhile, and refused if it stays so."""
        native = self._library
        once = max(native.once_us(call), 0.1)
        launches = max(-(-int(job["sample_us"]) // int(max(once, 1))), count if job["cold_bytes"] else 1)
        launches = min(launches, MOST_LAUNCHES)
        native.prepare(call, launches)
        why = ""
        for _ in range(SLOWED_TRIES):
            before, began = self._clocks.look(), time.monotonic()
            samples: list[float] = []
            spent = 0.0
            while len(samples) < int(job["most"]) and (len(samples) < int(job["least"]) or spent < float(job["limit_us"])):
                us = native.replay_us()
                samples.append(us / launches)
                spent = max(spent + us, (time.monotonic() - began) * 1e6)
            after = self._clocks.look()
            why = self._clocks.slowed(before, after)
            if not why:
                break
            time.sleep(SLOWED_PAUSE_S)
        if why or min(samples) <= 0:
            raise Refusal("time", "unstable", why or f"events counted {min(samples)} us")
        facts: dict[str, float | str] = {
            "how": "graph", "launches": launches, "weights": count, "cold_bytes": int(job["cold_bytes"]),
        }  # fmt: skip
        return samples, {**facts, **self._clocks.facts(before, after)}

    def _operands_of(self, op: Op, m: int, cold_bytes: int, splits: int) -> Operands:
        """Operands of the op on the device, kept while they suit."""
        operands = self._operands
        if operands is None or not operands.suits(op, m, cold_bytes, splits):
            if operands is not None:
                operands.free()
            self._operands = None
            self._operands = operands = Operands(self._library, op, m, cold_bytes, splits)
        return operands


def _facts_of(loaded: Loaded) -> dict[str, float | str]:
    return {"registers": loaded.registers, "local_bytes": loaded.local_bytes, "shared_bytes": loaded.shared_bytes}


class Operands:
    """x, y, weights that take turns, and a workspace."""

    def __init__(self, library: TimingLibrary, op: Op, m: int, cold_bytes: int, splits: int) -> None:
        self._scratch, self._op, self.rows, self._cold = DeviceScratch(library), op, m, cold_bytes
        size = DTYPE_BYTES[op.dtype]
        self.partial_bytes = 4 * splits * m * op["n"] if splits > 1 else 0
        self.groups = dict(op.static).get("g", 0)
        stack = max(1, self.groups)
        weight = stack * op["n"] * op["k"] * size
        self.count = max(2, -(-min(cold_bytes, MOST_WEIGHT_BYTES) // weight)) if cold_bytes else 1
        try:
            written = DTYPE_BYTES[op.dtype_of(op.meaning.output)]
            x_type = op.dtype_of(op.meaning.inputs[0])
            self.x, self.y = self._drawn(m * op["k"], x_type), self._scratch.room(m * op["n"] * written)
            self.partial = self._scratch.room(self.partial_bytes)
            self.ends = self._scratch.room(4 * stack)
            extents = {"m": m, **dict(op.static)}
            self.beside = {
                name: self._drawn(math.prod(extents[axis] for axis in axes), op.extra_dtype(name))
                for name, axes in op.epilogue_operands.items()
            }
            step = -(-weight // 256) * 256
            first = self._drawn(stack * op["n"] * op["k"], room=step * self.count)
            filled = 1
            while filled < self.count:  # by what is there already: two L2s of small weights are some thousand
                more = min(filled, self.count - filled)
                library.copy(first + filled * step, first, more * step)
                filled += more
        except BaseException:
            self.free()
            raise
        self.weights = np.array([first + index * step for index in range(self.count)], np.uint64)

    def _drawn(self, elements: int, dtype: str = "", room: int = 0) -> int:
        """Numbers at the start of ``room`` bytes, by default as many as they take."""
        return self._scratch.put(drawn(elements, dtype or self._op.dtype), room)

    def suits(self, op: Op, m: int, cold_bytes: int, splits: int) -> bool:
        """True if a call can use them."""
        room = self.partial_bytes >= (4 * splits * m * op["n"] if splits > 1 else 0)
        return op == self._op and m <= self.rows and cold_bytes == self._cold and room

    def args(self, op: Op, m: int, splits: int) -> ArgsWords:
        """Arguments of a call with so many rows."""
        partial = self.partial if splits > 1 else 0
        return ArgsWords(
            x=self.x, y=self.y, partial=partial, m=m, n=op["n"], k=op["k"], ldx=op["k"], ldy=op["n"], splits=splits,
            **after_of(op), **self.beside,
        )  # fmt: skip

    def even_ends(self, m: int) -> int:
        """Address of the ends of groups of even sizes; 0 of ops without groups."""
        if not self.groups:
            return 0
        self._scratch.native.put(self.ends, (np.arange(1, self.groups + 1) * m // self.groups).astype(np.int32))
        return self.ends

    def free(self) -> None:
        """Give all memory back."""
        self._scratch.free()
