"""ChainBound: a model of several segments of one open pack, cut where data tell a size or a branch.

A loop of a chain in Python: where single steps are timed. Calls go by runtime/native/model/loop_exec.c.

A call is one native call (model/chain.c).

Where single steps are looked at, and of packs that have no such call, each segment is one; between them this module does
what the document says: places of what is not 0, counts, random numbers, branches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from haotuner.errors import PackInvalid, UsageError
from haotuner.ops.host_steps import counted, holds, nonzero, random_numbers
from haotuner.runtime.expected_us import ExpectedUs
from haotuner.runtime.host_memory import OutputPool
from haotuner.runtime.reprs import described_model
from haotuner.runtime.schedule import sizes_of

if TYPE_CHECKING:
    from haotuner.runtime.model_bound import ModelBound, Ran
    from haotuner.runtime.native_library import NativeModel
    from haotuner.runtime.pack import Pack


def turned(
    step: Mapping[str, Any],
    tensors: dict[str, Any],
    dims: dict[str, int],
    run: Callable[[Sequence[Mapping[str, Any]], dict[str, Any]], None],
) -> None:
    """All turns of a loop; ``run``: the steps of a turn. What the loop makes joins ``tensors`` and ``dims``."""
    limits = [int(np.asarray(tensors[step["limit"]]).reshape(-1)[0])] if step["limit"] else []
    limits += [len(tensors[whole]) for whole, _ in step["rows"]]
    goes_on, turn = _holds(tensors, step["asked"]), 0
    own = {**tensors, **{value: tensors[first] for first, value, _, _ in step["carried"]}}
    changes = [(step["carried"][number][1], axis, *terms) for number, axis, *terms in step.get("changes", [])]
    stacks: list[list[Any]] = [[] for _ in step["made"]]
    while goes_on and all(turn < most for most in limits):
        own[step["turn"]] = np.asarray(turn, np.int64)
        dims.update((dim, own[value].shape[axis]) for value, axis, dim, _ in changes)
        own |= {row: np.ascontiguousarray(tensors[whole][turn]) for whole, row in step["rows"]}
        run(step["steps"], own)
        for stack, (row, _) in zip(stacks, step["made"], strict=True):
            stack.append(own[row])
        own |= {value: own[after] for _, value, after, _ in step["carried"]}
        goes_on, turn = _holds(own, step["goes_on"]), turn + 1
    dims.update((outside, own[value].shape[axis]) for value, axis, _, outside in changes if outside is not None)
    tensors |= {last: own[value] for _, value, _, last in step["carried"] if last is not None}
    for stack, (_, whole), kind in zip(stacks, step["made"], step["kinds"], strict=True):
        shape = [0, *(extent if isinstance(extent, int) else dims.get(extent, 0) for extent in kind["shape"])]
        tensors[whole] = np.stack(stack) if stack else np.zeros(shape, kind["dtype"])
    if step["dim"] is not None:
        dims[step["dim"]], tensors[step["turns"]] = turn, np.arange(turn, dtype=np.int64)


def _holds(tensors: Mapping[str, Any], name: str | None) -> bool:
    return True if name is None else bool(np.asarray(tensors[name]).reshape(-1)[0])


Guard: TypeAlias = tuple[tuple[str, int], ...]  # branches and what they must be
_Run = Callable[["ModelBound", Mapping[str, Any], "Mapping[str, Any] | None"], dict[str, Any]]


def is_chain(raw: bytes) -> bool:
    """True if a model's document is that of a chain; its keys are sorted."""
    return raw.startswith(b'{"chain"')


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """An input or output: ``shape`` has a number, the name of a dimension, or None for what follows from others.

    ``default``: what a call without this input computes with; None where it must be there.
    """

    name: str
    dtype: Any
    shape: tuple[int | str | None, ...]
    default: Any = None

    @staticmethod
    def of(document: Mapping[str, Any]) -> ChainEnd:
        """As the document says it."""
        dtype, default = np.dtype(document["dtype"]), document.get("default")
        if default is not None:
            default = np.frombuffer(bytes.fromhex(default["bytes"]), dtype).reshape(default["shape"])
        return ChainEnd(document["name"], dtype, tuple(document["shape"]), default)


class ChainBound:
    """Chain of a pack that a ``Chain`` calls until its pack is handed over."""

    def __init__(
        self, pack: Pack, raw: bytes, where: str, model: Callable[[str], ModelBound], native: NativeModel | None = None
    ) -> None:
        """``raw``: the document of the file ``where``; ``model``: opens a segment. PackInvalid where it is not sound.

        ``native``: the chain as the library knows it.
        """
        self.pack = pack
        try:
            document = json.loads(raw)
            self.name, self.dims = str(document["name"]), tuple(document["dims"])
            self._steps: list[dict[str, Any]] = document["chain"]
            self._inputs, self._outputs = ([ChainEnd.of(item) for item in document[kind]] for kind in ("inputs", "outputs"))
            self._guards = dict(_guards(self._steps))
            names = list(self._guards)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PackInvalid(f"{where} is not a model's chain: {error!r}; restore the pack or tune again") from error
        self.document: Mapping[str, Any] = document
        self._answers = OutputPool(len(self._outputs))
        self.segments: dict[str, ModelBound] = {name: model(name) for name in names}
        self._native = native
        if native is not None:
            if native.segments() != names:
                raise PackInvalid(f"{where} names other segments than the pack's library; restore the pack or tune again")
            for index, name in enumerate(names):
                native.link(index, self.segments[name].native)

    def __repr__(self) -> str:
        return described_model(self)

    @property
    def always(self) -> list[str]:
        """Names of the segments that every call runs, in no branch."""
        return [name for name in self.segments if not self._guards[name]]

    @property
    def inputs(self) -> list[ChainEnd]:
        """Inputs in order: ``name``, ``dtype`` and ``shape`` of each."""
        return list(self._inputs)

    @property
    def outputs(self) -> list[ChainEnd]:
        """Outputs, as ``inputs``."""
        return list(self._outputs)

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, seed: int | None = None
    ) -> dict[str, Any]:
        """Outputs by name; ``out``: arrays for them. ``seed``: of random numbers, which otherwise differ each time.

        UsageError names the input, what was expected and what was found, or the size that the data make.
        """
        if self._native is None:
            return self._walked(inputs, out, seed, lambda model, inputs, placed: model.run(inputs, placed))
        arguments = self._contiguous(inputs)
        result: dict[int, Any] = {}

        def made(output: int, shape: tuple[int, ...]) -> Any:
            end = self._outputs[output]
            target = None if out is None else out.get(end.name)
            if target is not None and not (
                isinstance(target, np.ndarray)
                and target.shape == shape
                and target.dtype == end.dtype
                and target.flags.writeable
            ):
                raise UsageError(f"out[{end.name!r}] must be a writeable array, {end.dtype} {shape}")
            whole = target is not None and target.flags.c_contiguous and target.flags.aligned
            result[output] = target if whole else self._answers.take(shape, end.dtype)
            return result[output]

        self._count(self._native.run_placed(arguments, seed, made))
        return {end.name: _delivered(result[index], end, out) for index, end in enumerate(self._outputs)}

    @property
    def native(self) -> NativeModel | None:
        """The chain as the library knows it; None of packs whose library knows the segments alone."""
        return self._native

    @property
    def _linked(self) -> NativeModel:
        assert self._native is not None
        return self._native

    def _count(self, sizes: Sequence[int]) -> None:
        """Count a call of all segments that it ran, by its dimensions in the library's order."""
        dims = dict(zip(self._linked.dims, sizes, strict=True))
        for name, segment in self.segments.items():
            if _is_taken(self._guards[name], dims):
                segment.count(dims)

    def _contiguous(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Inputs in order, as the library reads them; it says what is wrong with their shapes."""
        inputs = self._whole(inputs)
        result = []
        for end in self._inputs:
            array = inputs[end.name]
            if not isinstance(array, np.ndarray):
                array = np.from_dlpack(array) if hasattr(array, "__dlpack__") else array
            if getattr(array, "dtype", None) != end.dtype:
                kind = getattr(array, "dtype", type(array).__name__)
                raise UsageError(f"{self.name}: input {end.name} must be an array of {end.dtype}, got {kind}")
            whole = array.flags.c_contiguous and array.flags.aligned
            result.append(array if whole else np.array(array, end.dtype, order="C"))
        return result

    def step_times(self, inputs: Mapping[str, Any], seed: int | None = None) -> list[Ran]:
        """Of each segment, in the order they ran, its steps and their microseconds in one call: of all turns together."""
        result: dict[tuple[str, str], Ran] = {}

        def timed(model: ModelBound, inputs: Mapping[str, Any], placed: Mapping[str, Any] | None) -> dict[str, Any]:
            made, us = model.timed(inputs)
            ran = model.ran(inputs, us)
            before = result.get((model.name, ran.where))
            if before is not None:
                ran = ran._replace(us=[sum(both) for both in zip(before.us, ran.us, strict=True)])
            result[model.name, ran.where] = ran
            return made

        self._walked(inputs, None, seed, timed)
        return list(result.values())

    def _walked(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None, seed: int | None, run: _Run
    ) -> dict[str, Any]:
        """The chain from its first step to its last; ``run`` carries a segment out."""
        tensors, dims = self._checked_inputs(inputs)
        self._steps_of(self._steps, tensors, dims, out, seed, run)
        return {end.name: _delivered(tensors[end.name], end, out) for end in self._outputs}

    def _steps_of(
        self,
        every: Sequence[Mapping[str, Any]],
        tensors: dict[str, Any],
        dims: dict[str, int],
        out: Mapping[str, Any] | None,
        seed: int | None,
        run: _Run,
    ) -> None:
        """Some steps one after the other, which put what they make into ``tensors`` and ``dims``."""
        steps = iter(every)
        for step in steps:
            if step["do"] == "when":
                for _ in range(0 if dims[step["dim"]] == step["is"] else step["skip"]):
                    next(steps)
            elif step["do"] == "segment":
                model = self.segments[step["model"]]
                placed = {end.name: out[end.name] for end in model.outputs if end.name in out} if out else {}
                tensors |= run(model, {end.name: tensors[end.name] for end in model.inputs}, placed or None)
            elif step["do"] == "loop":
                turned(step, tensors, dims, lambda inner, own: self._steps_of(inner, own, dims, None, seed, run))
            elif step["do"] == "random":
                sizes, attributes = sizes_of(step["sizes"], dims), step["attributes"]
                shape = [sizes[extent] for extent in step["shape"]]
                tensors[step["out"]] = random_numbers(
                    attributes, shape, attributes.get("seed", seed), np.dtype(step["dtype"])
                )
            elif step["do"] == "required":
                if not sizes_of(step["sizes"], dims)[-1]:
                    raise UsageError(f"{self.name}: {step['words']}")
            elif step["do"] == "decided":
                dims[step["dim"]] = int(
                    holds(tensors[step["of"]]) if "of" in step else sizes_of(step["sizes"], dims)[-1] != 0
                )
            elif step["do"] == "chosen":
                value = tensors[step["out"]] = tensors[step["of"][0 if dims[step["dim"]] else 1]]
                dims.update((dim, value.shape[axis]) for axis, dim in step["told"])
            else:
                of = tensors[step["of"]]
                value = nonzero(of) if step["do"] == "nonzero" else counted(of, step["place"])
                tensors[step["out"]], dims[step["dim"]] = value, value.shape[-1]

    def expected_us(self, dims: Mapping[str, int]) -> ExpectedUs:
        """UsageError: what a call runs depends on data, which nobody knows before it."""
        raise UsageError(f"{self.name}: its sizes depend on data, so no time is expected of {dict(dims)!r:.200}")

    def memory_bytes(self, **dims: int) -> int:
        """Bytes of working memory of a call with these dimensions, those of the data among them."""
        if dims.keys() != set(self.dims):
            raise UsageError(f"{self.name} has the dimensions {', '.join(self.dims)}; got {', '.join(dims) or 'none'}")
        if self._native is not None:
            return self._native.memory([dims[name] for name in self._native.dims])
        run = [segment for name, segment in self.segments.items() if _is_taken(self._guards[name], dims)]
        return sum(segment.memory_bytes(**{name: dims[name] for name in segment.dims}) for segment in run)

    def stats(self) -> dict[str, int]:
        """Statistics of the segments, together; ``calls`` of each segment are calls."""
        every = [segment.stats() for segment in self.segments.values()]
        own = {**self._native.counters(), "calls": 0} if self._native is not None else {}
        return {name: sum(segment[name] for segment in every) + own.get(name, 0) for name in every[0]}

    def trim(self) -> None:
        """Give back the working memory that no call uses now."""
        for segment in self.segments.values():
            segment.trim()
        if self._native is not None:
            self._native.trim()
        self._answers.clear()

    def _whole(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Inputs with the defaults of those that are left out."""
        defaults = {end.name: end.default for end in self._inputs if end.default is not None}
        whole = {**defaults, **inputs} if defaults else inputs
        self._check_names(whole)
        return whole

    def _check_names(self, inputs: Mapping[str, Any]) -> None:
        names = [end.name for end in self._inputs]
        if set(inputs) != set(names):
            lacking, unknown = [name for name in names if name not in inputs], [name for name in inputs if name not in names]
            raise UsageError(
                f"{self.name} takes the inputs {', '.join(names)}; "
                + "; ".join([f"{name} is missing" for name in lacking] + [f"there is no {name}" for name in unknown])
            )

    def _checked_inputs(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        inputs = self._whole(inputs)
        tensors, dims = dict(inputs), dict[str, int]()
        for end in self._inputs:
            shape = np.shape(inputs[end.name])  # of any array; the first segment checks its type
            if len(shape) != len(end.shape):
                raise UsageError(f"{self.name}: input {end.name} must have {len(end.shape)} axes, got the shape {shape}")
            dims |= {extent: size for extent, size in zip(end.shape, shape, strict=True) if isinstance(extent, str)}
        return tensors, dims


def _guards(steps: Sequence[Mapping[str, Any]], outer: Guard = ()) -> Iterator[tuple[str, Guard]]:
    """Segments in the order of the library's, each with the branches that must be taken so, or it is skipped."""
    ends: list[tuple[int, str, int]] = []
    for index, step in enumerate(steps):
        ends = [end for end in ends if index <= end[0]]
        guard = (*outer, *((dim, value) for _, dim, value in ends))
        if step["do"] == "when":
            ends.append((index + step["skip"], step["dim"], step["is"]))
        if step["do"] == "segment":
            yield step["model"], guard
        yield from _guards(step.get("steps", ()), guard)


def _is_taken(guard: Guard, dims: Mapping[str, int]) -> bool:
    return all(dims[name] == value for name, value in guard)


def _delivered(value: Any, end: ChainEnd, out: Mapping[str, Any] | None) -> Any:
    target = None if out is None else out.get(end.name)
    if target is None or target is value:
        return value
    if getattr(target, "shape", None) != value.shape or getattr(target, "dtype", None) != value.dtype:
        raise UsageError(f"out[{end.name!r}] must be a writeable array, {value.dtype} {value.shape}")
    np.copyto(target, value)
    return target
