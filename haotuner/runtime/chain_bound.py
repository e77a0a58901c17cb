"""ChainBound: a model of several segments of one open pack, cut where data tell a size or a branch.

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
from haotuner.runtime.chain_loop import turned
from haotuner.runtime.output_pool import OutputPool
from haotuner.runtime.reprs import described_model
from haotuner.runtime.schedule import sizes_of

if TYPE_CHECKING:
    from haotuner.runtime.model_bound import ModelBound, Ran
    from haotuner.runtime.native_library import NativeModel
    from haotuner.runtime.pack import Pack


Guard: TypeAlias = tuple[tuple[str, int], ...]  # branches and what they must be
_Run = Callable[["ModelBound", Mapping[str, Any], "Mapping[str, Any] | None"], dict[str, Any]]


def is_chain(raw: bytes) -> bool:
    """Whether a model's document is that of a chain; its keys are sorted."""
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
    def of(told: Mapping[str, Any]) -> ChainEnd:
        """As the document says it."""
        dtype, default = np.dtype(told["dtype"]), told.get("default")
        if default is not None:
            default = np.frombuffer(bytes.fromhex(default["bytes"]), dtype).reshape(default["shape"])
        return ChainEnd(told["name"], dtype, tuple(told["shape"]), default)


class ChainBound:
    """What a ``Chain`` calls until its pack is handed over."""

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
            self._inputs, self._outputs = ([ChainEnd.of(one) for one in document[kind]] for kind in ("inputs", "outputs"))
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
            for place, name in enumerate(names):
                native.link(place, self.segments[name].native)

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
            return self._walked(inputs, out, seed, lambda model, given, placed: model.run(given, placed))
        given = self._contiguous(inputs)
        found: dict[int, Any] = {}

        def made(output: int, shape: tuple[int, ...]) -> Any:
            end = self._outputs[output]
            place = None if out is None else out.get(end.name)
            if place is not None and not (
                isinstance(place, np.ndarray) and place.shape == shape and place.dtype == end.dtype and place.flags.writeable
            ):
                raise UsageError(f"out[{end.name!r}] must be a writeable array, {end.dtype} {shape}")
            whole = place is not None and place.flags.c_contiguous and place.flags.aligned
            found[output] = place if whole else self._answers.take(shape, end.dtype)
            return found[output]

        self._count(self._native.run_placed(given, seed, made))
        return {end.name: _delivered(found[place], end, out) for place, end in enumerate(self._outputs)}

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
        for name, one in self.segments.items():
            if _taken(self._guards[name], dims):
                one.count(dims)

    def _contiguous(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Inputs in order, as the library reads them; it says what is wrong with their shapes."""
        inputs = self._whole(inputs)
        found = []
        for end in self._inputs:
            array = inputs[end.name]
            if not isinstance(array, np.ndarray):
                array = np.from_dlpack(array) if hasattr(array, "__dlpack__") else array
            if getattr(array, "dtype", None) != end.dtype:
                kind = getattr(array, "dtype", type(array).__name__)
                raise UsageError(f"{self.name}: input {end.name} must be an array of {end.dtype}, got {kind}")
            whole = array.flags.c_contiguous and array.flags.aligned
            found.append(array if whole else np.array(array, end.dtype, order="C"))
        return found

    def step_times(self, inputs: Mapping[str, Any], seed: int | None = None) -> list[Ran]:
        """Of each segment, in the order they ran, its steps and their microseconds in one call: of all turns together."""
        found: dict[tuple[str, str], Ran] = {}

        def timed(model: ModelBound, given: Mapping[str, Any], placed: Mapping[str, Any] | None) -> dict[str, Any]:
            made, us = model.timed(given)
            ran = model.ran(given, us)
            before = found.get((model.name, ran.where))
            if before is not None:
                ran = ran._replace(us=[sum(both) for both in zip(before.us, ran.us, strict=True)])
            found[model.name, ran.where] = ran
            return made

        self._walked(inputs, None, seed, timed)
        return list(found.values())

    def _walked(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None, seed: int | None, run: _Run
    ) -> dict[str, Any]:
        """The chain from its first step to its last; ``run`` carries a segment out."""
        tensors, dims = self._given(inputs)
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
                sizes, told = sizes_of(step["sizes"], dims), step["attributes"]
                shape = [sizes[place] for place in step["shape"]]
                tensors[step["out"]] = random_numbers(told, shape, told.get("seed", seed), np.dtype(step["dtype"]))
            elif step["do"] == "required":
                if not sizes_of(step["sizes"], dims)[-1]:
                    raise UsageError(f"{self.name}: {step['words']}")
            elif step["do"] == "decided":
                dims[step["dim"]] = int(
                    holds(tensors[step["of"]]) if "of" in step else sizes_of(step["sizes"], dims)[-1] != 0
                )
            elif step["do"] == "chosen":
                found = tensors[step["out"]] = tensors[step["of"][0 if dims[step["dim"]] else 1]]
                dims.update((dim, found.shape[axis]) for axis, dim in step["told"])
            else:
                of = tensors[step["of"]]
                found = nonzero(of) if step["do"] == "nonzero" else counted(of, step["place"])
                tensors[step["out"]], dims[step["dim"]] = found, found.shape[-1]

    def memory_bytes(self, **dims: int) -> int:
        """Bytes of working memory of a call with these dimensions, those of the data among them."""
        if dims.keys() != set(self.dims):
            raise UsageError(f"{self.name} has the dimensions {', '.join(self.dims)}; got {', '.join(dims) or 'none'}")
        if self._native is not None:
            return self._native.memory([dims[name] for name in self._native.dims])
        run = [one for name, one in self.segments.items() if _taken(self._guards[name], dims)]
        return sum(one.memory_bytes(**{name: dims[name] for name in one.dims}) for one in run)

    def stats(self) -> dict[str, int]:
        """What the segments count and hold, together; ``calls`` of each segment are calls."""
        every = [one.stats() for one in self.segments.values()]
        own = {**self._native.held(), "calls": 0} if self._native is not None else {}
        return {name: sum(one[name] for one in every) + own.get(name, 0) for name in every[0]}

    def trim(self) -> None:
        """Give back the working memory that no call uses now."""
        for one in self.segments.values():
            one.trim()
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
            lacking, unknown = [one for one in names if one not in inputs], [one for one in inputs if one not in names]
            raise UsageError(
                f"{self.name} takes the inputs {', '.join(names)}; "
                + "; ".join([f"{one} is missing" for one in lacking] + [f"there is no {one}" for one in unknown])
            )

    def _given(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        inputs = self._whole(inputs)
        tensors, dims = dict(inputs), dict[str, int]()
        for end in self._inputs:
            shape = np.shape(inputs[end.name])  # of any array; the first segment checks its type
            if len(shape) != len(end.shape):
                raise UsageError(f"{self.name}: input {end.name} must have {len(end.shape)} axes, got the shape {shape}")
            dims |= {said: size for said, size in zip(end.shape, shape, strict=True) if isinstance(said, str)}
        return tensors, dims


def _guards(steps: Sequence[Mapping[str, Any]], outer: Guard = ()) -> Iterator[tuple[str, Guard]]:
    """Segments in the order of the library's, each with the branches that must be taken so, or it is skipped."""
    ends: list[tuple[int, str, int]] = []
    for place, step in enumerate(steps):
        ends = [one for one in ends if place <= one[0]]
        guard = (*outer, *((dim, value) for _, dim, value in ends))
        if step["do"] == "when":
            ends.append((place + step["skip"], step["dim"], step["is"]))
        if step["do"] == "segment":
            yield step["model"], guard
        yield from _guards(step.get("steps", ()), guard)


def _taken(guard: Guard, dims: Mapping[str, int]) -> bool:
    return all(dims[name] == value for name, value in guard)


def _delivered(found: Any, end: ChainEnd, out: Mapping[str, Any] | None) -> Any:
    place = None if out is None else out.get(end.name)
    if place is None or place is found:
        return found
    if getattr(place, "shape", None) != found.shape or getattr(place, "dtype", None) != found.dtype:
        raise UsageError(f"out[{end.name!r}] must be a writeable array, {found.dtype} {found.shape}")
    np.copyto(place, found)
    return place
