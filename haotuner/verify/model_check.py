"""Request from a model's file, and the check of a new pack's model against the reference.

``python -m haotuner.verify.model_check PACK MODEL.onnx SHAPES [COUNTER [SUBGRAPH]]`` checks in a process of its own: code
that crashes must not take the tuner along.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from haotuner.errors import HaotunerError, PackInvalid, UsageError
from haotuner.frontends.onnx.read import read
from haotuner.frontends.onnx.subgraphs import read_subgraphs
from haotuner.frontends.source_file import source_sha256
from haotuner.frontends.torch_export.exported_program import SUFFIX, read_exported
from haotuner.graph.error_bounds import SEED, difference, in_double, tolerance_of
from haotuner.graph.extents import dimensions, evaluate
from haotuner.graph.fp16_to_fp32 import fp16_to_fp32
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from haotuner.graph.types import FLOATS, numpy_dtype
from haotuner.host.files import read_regular, written_aside
from haotuner.isolate import group
from haotuner.isolate.answers import TimedOut
from haotuner.isolate.group import how_it_ended
from haotuner.pack.manifest import read_manifest
from haotuner.partition.dim_ranges import demands, ranges_of, requests, spans_of, unmet
from haotuner.partition.index_bounds import index_bounds, index_sources
from haotuner.partition.segments import cut
from haotuner.runtime.device_chain import DeviceChain
from haotuner.runtime.device_model import DeviceModelBound
from haotuner.runtime.model import Chain
from haotuner.runtime.model_bound import ModelBound
from haotuner.runtime.pack import Pack
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.shape import Span
from haotuner.verify.device_numbers import answered, answered_chain, ordinal_for

if TYPE_CHECKING:
    from haotuner.partition.tasks import Forms, ModelTask

CHECKED_ELEMENTS = 3e6  # of all tensors of a checked request: numpy then takes seconds
CHECKS = 3
REREAD_NODES = 2_000  # of a file that is read again for one request after the other, beside the checked ones
REREAD_BYTES = 1 << 28  # of constants; a file of more is read again for one request alone
CHECK_LIMIT_S = 900.0
COUNT_BYTES = 100  # of a file that counts checked shapes


def model_of(
    path: str | Path,
    shapes: str,
    first_group: int = 0,
    measure_s: float = 0.0,
    serves: Callable[[Op], bool] | None = None,
    device: Device | None = None,
    forms: Forms | None = None,
    subgraph: int | None = None,
) -> ModelTask:
    """The model of an ONNX file, or of one that torch.export saved (.pt2), ready to be tuned; errors as of the readers.

    ``serves``: of a device, ``device``: of a CPU, ``forms``: None for none, as of ``model_task``. ``subgraph``: as of
    ``graph_of``.
    """
    from haotuner.partition.tasks import model_task  # with solvers and more, which a check can do without

    path_ = Path(path)
    graph = graph_of(path_, shapes, defaults=serves is None, subgraph=subgraph)
    graph = fp16_to_fp32(graph) if serves is None else graph
    every, pairs = requests(spans_of(graph, shapes)), demands(graph)
    refusals = [unmet(pairs, sizes) for sizes in every]
    if refusals and all(refusals[:2]):  # the smallest and the largest
        raise UsageError(
            f"{path_.name} takes neither the smallest nor the largest request of {shapes}: {every[0]} makes {refusals[0]}, "
            "which must be equal. Give sizes at which they are, multiples of a number with a step (h=32..512:32). "
            "Where a number of the file stands for a dimension, export the model with that dimension dynamic"
        )
    task = model_task(name_of(path_, subgraph), graph, shapes, path_, first_group, measure_s, serves,
                      device=device, forms=forms)  # fmt: skip
    return replace(task, source_sha256=source_sha256(path_), subgraph=subgraph)


def name_of(file: Path, subgraph: int | None = None) -> str:
    """Name of a file's model in a pack, or of a subgraph of it."""
    end = "" if subgraph is None else f".subgraph{subgraph}"
    return (re.sub(r"[^A-Za-z0-9_.-]", "_", file.stem)[: 60 - len(end)].lstrip(".-") or "model") + end


def graph_of(
    file: Path,
    shapes: str,
    sizes: Mapping[str, int] | None = None,
    *,
    defaults: bool = True,
    subgraph: int | None = None,
) -> Graph:
    """The graph of a model's file, by the file's kind, for requests of these shapes; errors as of the readers.

    ``sizes``: of one request, which is then all that the graph serves. ``defaults``: as of ``read``; packs of devices have
    none. ``subgraph``: number of the level of ``read_subgraphs`` to read; None: the whole file.
    """
    if subgraph is not None:
        level = read_subgraphs(file, lambda inputs: ranges_of(inputs, shapes), sizes)[subgraph]
        if level is None:
            raise UsageError(f"{file}: subgraph {subgraph} computes nothing; tune the file again")
        return level
    if file.suffix == SUFFIX:
        return read_exported(file, sizes)
    return read(file, ranges=lambda inputs: ranges_of(inputs, shapes), defaults=defaults, sizes=sizes)


def check_apart(
    pack: Path,
    file: Path,
    shapes: str,
    environment: Mapping[str, str],
    abandoned: Event | None = None,
    counter: Path | None = None,
    subgraph: int | None = None,
) -> None:
    """``check_model`` in a process of its own. PackInvalid with its words.

    ``counter``: a file that it writes how many shapes it has checked to, for ``shapes_checked``. ``subgraph``: as of
    ``graph_of``.
    """
    words = [sys.executable, "-m", "haotuner.verify.model_check", str(pack), str(file), shapes]
    words += ["" if counter is None else str(counter), *([] if subgraph is None else [str(subgraph)])]
    try:
        answer = group.run(words, CHECK_LIMIT_S, dict(environment) or None, abandoned=abandoned)
    except TimedOut as error:
        raise PackInvalid(
            f"the check of the new pack's model took more than {CHECK_LIMIT_S:.0f} s; tune for smaller sizes, or on a host "
            "that is less busy: what was measured is kept in the records"
        ) from error
    if answer.code != 0:
        errors = answer.errors.strip()[-1500:] or how_it_ended(answer.code)
        raise PackInvalid(f"the model of the new pack did not pass its check and was not published: {errors}")


def shapes_checked(counters: Iterable[Path]) -> tuple[int, int]:
    """Shapes that checks of models have checked so far, and all shapes that they are to check, by their files."""
    pairs = []
    for counter in counters:
        words = read_regular(counter, COUNT_BYTES).split() if counter.exists() else []
        pairs.append((int(words[0]), int(words[1])) if len(words) == 2 else (0, 0))
    return sum(checked for checked, _ in pairs), sum(total for _, total in pairs)


class _ShapeCounter:
    """A count of checked shapes, written to a file."""

    def __init__(self, counter: Path | None) -> None:
        self._counter, self._checked, self._total = counter, 0, 0

    def add_shapes(self, shapes: int) -> None:
        """Add shapes that are to be checked, too."""
        self._total += shapes
        self._write()

    def count_shape(self) -> None:
        """Count a shape as checked."""
        self._checked += 1
        self._write()

    def _write(self) -> None:
        if self._counter is not None:
            with written_aside(self._counter) as aside:  # a reader never sees half a count
                aside.write_text(f"{self._checked} {self._total}")


def drawn_inputs(graph: Graph, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Any]:
    """Inputs of a request: defaults, else normal numbers; whole ones are 0 or 1, and 0 where they choose from one row."""
    draw = np.random.default_rng(seed)
    rows = [(bound.input, bound.extent) for bound in index_bounds(graph)]
    rows += [(name, extent) for name, extents in index_sources(graph).items() for extent in extents]
    alone = {name for name, extent in rows if dimensions(extent) <= sizes.keys() and evaluate(extent, sizes) < 2}
    result: dict[str, Any] = {}
    for name in graph.inputs:
        kind = graph.types[name]
        shape = [evaluate(extent, sizes) for extent in kind.shape]
        default = graph.defaults.get(name)
        if default is not None and list(np.shape(default)) == shape:
            result[name] = default
        elif kind.dtype in FLOATS:
            result[name] = draw.standard_normal(shape).astype(numpy_dtype(kind.dtype))
        else:
            result[name] = draw.integers(0, 1 if name in alone else 2, shape).astype(numpy_dtype(kind.dtype))
    return result


def check_model(
    pack: Path,
    name: str,
    graph: Graph,
    spans: Mapping[str, Span],
    at_sizes: Callable[[Mapping[str, int]], Graph] | None = None,
    counter: Path | None = None,
) -> None:
    """PackInvalid unless the pack's model computes what the reference does, at the smallest requests of its range.

    Of a model with branches both sides are computed, each where its sizes allow. ``at_sizes``: the graph of the file at one
    request, whose sizes are numbers from the first node on; ``graph`` is held against it. ``counter``: see ``check_apart``.
    """
    counted = _ShapeCounter(counter)
    graph = graph if read_manifest(pack).on_device else fp16_to_fp32(graph)
    pairs = demands(graph)
    agreed = [request for request in requests(spans) if not unmet(pairs, request)]
    guards = dict.fromkeys(segment.guard for segment in cut(graph))
    sides = [pair for guard in guards for pair in demands(graph, dict(guard))]
    agreed = [
        pair for pair in agreed if not unmet(sides, pair)
    ] or agreed  # of requests that all sides of branches can answer
    small = sorted(((_elements(graph, sizes), sizes) for sizes in agreed), key=lambda item: item[0])
    chosen = [sizes for elements, sizes in small if elements <= CHECKED_ELEMENTS][-CHECKS:] or [s for _, s in small[:1]]
    made = {node.output for node in graph.nodes}
    counted.add_shapes(len(chosen))
    if at_sizes is not None:
        check_reading(name, graph, at_sizes, chosen, [s for elements, s in small if elements <= CHECKED_ELEMENTS], counted)
    named, whole, unanswered = False, False, list[str]()
    for sizes in chosen:
        inputs: Mapping[str, Any] = drawn_inputs(graph, sizes)
        references: list[_Reference] | None = None
        for opened in _opened(pack):
            with opened:
                model = opened.model(name)
                parts: list[ModelBound] = list(model.segments.values()) if isinstance(model, Chain) else [model.bound]
                if references is None:
                    ends = {end.name for part in parts for end in (*part.inputs, *part.outputs)}
                    try:
                        inputs, references = _answered(graph, inputs, ends & made, sizes)
                    except IndexError as error:
                        unanswered.append(f"{dict(sizes)}: {error}")
                        break
                for reference in references:
                    for part in parts:
                        _check_part(part, reference, sizes)
                    if isinstance(model, Chain) and reference.own:
                        result = _whole(model, inputs)
                        whole |= not _too_far({end: result[end] for end in graph.outputs}, reference, whole=True)
                        named = True
        counted.count_shape()
    if unanswered and len(unanswered) == len(chosen):
        raise PackInvalid(
            f"model {name}: no request that was drawn has an answer, rows are chosen that no tensor has ({unanswered[0]}); "
            "begin the ranges of --shapes where all rows are there"
        )
    if named and not whole:  # rounding may change a size that the data tell, but hardly always
        raise PackInvalid(f"model {name}: its segments together compute something else; the pack was not published")


def check_reading(
    name: str,
    graph: Graph,
    at_sizes: Callable[[Mapping[str, int]], Graph],
    chosen: Sequence[Mapping[str, int]],
    small: Sequence[Mapping[str, int]],
    counted: _ShapeCounter | None = None,
) -> None:
    """PackInvalid where the graph of all sizes answers otherwise than the file does, or not at all, read for one request.

    There arithmetic on sizes is numpy's, in the file's types, and nothing of it is symbolic. ``chosen`` requests are
    computed, and of ``small`` ones as many more as the nodes allow.
    """
    more = [item for item in small if item not in chosen][:: max(1, len(small) * len(graph.nodes) // REREAD_NODES)]
    if sum(constant.nbytes for constant in graph.constants.values()) > REREAD_BYTES:
        chosen, more = chosen[-1:], []
    guards = dict.fromkeys([(), *(segment.guard for segment in cut(graph))])
    stated = [pair for guard in guards for pair in demands(graph, dict(guard))]
    random = any(node.primitive == "random" for node in graph.nodes)  # whose numbers follow from the order of reading
    counted = counted or _ShapeCounter(None)
    counted.add_shapes(len(chosen) + len(more))
    for sizes in (*chosen, *more):
        counted.count_shape()
        inputs = drawn_inputs(graph, sizes)
        try:
            single = at_sizes(sizes)
            required = interpret(single, inputs, SEED)
        except (HaotunerError, ValueError, IndexError):
            continue  # there is no answer to this request
        try:
            result = interpret(graph, inputs, SEED)
        except (HaotunerError, ValueError, IndexError) as error:
            if unmet(stated, sizes):
                continue  # a side of a branch has its own demands, which its requests are told
            raise PackInvalid(
                f"model {name}, {dict(sizes)}: the graph of all sizes has no answer ({error}), and the file has one; the "
                "pack was not published. Tune for other sizes, and report the model"
            ) from error
        most = tolerance_of(single, inputs)
        for output, want in required.items():
            far = difference(result[output], want)
            if far > most and not (random and result[output].shape == want.shape):
                raise PackInvalid(
                    f"model {name}, {dict(sizes)}: output {output} is {list(result[output].shape)} and {far:.2g} away from "
                    f"{list(want.shape)}, which the file says at these sizes; the pack was not published"
                )


class _Reference(NamedTuple):
    """``values`` of tensors, how far others may be from them, and whether the request takes its ``own`` branches there.

    ``in_double``: the same tensors of what was ``requested``, each step in float64; none where those steps have no answer.
    """

    values: Mapping[str, Any]
    most: float
    own: bool
    requested: Collection[str]
    in_double: Callable[[Collection[str]], Mapping[str, Any]]


def _references(
    graph: Graph, inputs: Mapping[str, Any], keep: Collection[str], sizes: Mapping[str, int]
) -> Iterator[_Reference]:
    """Reference results of a request, and of its branches taken otherwise, where sides have answers for its sizes."""
    guards = dict.fromkeys(segment.guard for segment in cut(graph))
    flags = {node.output: str(node.attributes["branch"]) for node in graph.nodes if node.primitive == "decided"}
    for guard in guards:
        try:
            values = interpret(graph, inputs, SEED, {*keep, *flags}, dict(guard))
            most = tolerance_of(graph, inputs, dict(guard))
        except (HaotunerError, ValueError, IndexError):
            if len(guards) == 1:
                raise
            continue
        branches = {name: int(values[flag]) for flag, name in flags.items() if flag in values}
        if not unmet(demands(graph, branches), {name: sizes[name] for name in graph.dimensions}):
            exact = partial(in_double, graph, inputs, dict(guard))
            yield _Reference({**values, **inputs}, most, not guard, inputs.keys(), exact)


def _answered(
    graph: Graph, inputs: Mapping[str, Any], keep: Collection[str], sizes: Mapping[str, int]
) -> tuple[Mapping[str, Any], list[_Reference]]:
    """Inputs that the reference can answer, and its answers: as drawn, or with 0 for every whole number.

    IndexError where both choose rows that no tensor has: this request has no answer.
    """
    try:
        return inputs, list(_references(graph, inputs, keep, sizes))
    except IndexError:
        zeros = {name: value if value.dtype.kind not in "iu" else np.zeros_like(value) for name, value in inputs.items()}
    return zeros, list(_references(graph, zeros, keep, sizes))


def _opened(pack: Path) -> Iterator[Pack]:
    """The pack by one thread and by all; one of a device on the first that runs it."""
    manifest = read_manifest(pack)
    if manifest.on_device:
        yield Pack(pack, device=f"cuda:{ordinal_for(manifest)}")
        return
    yield from (Pack(pack, threads) for threads in (1, None))


def _whole(model: Chain, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return answered_chain(model, inputs, SEED) if isinstance(model, DeviceChain) else model.run(inputs, seed=SEED)


def _check_part(part: ModelBound, reference: _Reference, sizes: Mapping[str, int]) -> None:
    values = reference.values
    if not all(end.name in values for end in (*part.inputs, *part.outputs)):
        return  # of a side of a branch that was not taken, or of a loop's body: the whole call runs it
    inputs = {end.name: values[end.name] for end in part.inputs}
    answers = answered(part, inputs) if isinstance(part, DeviceModelBound) else part.run(inputs)
    for output, far in _too_far(answers, reference, whole=set(inputs) <= set(reference.requested)).items():
        raise PackInvalid(
            f"model {part.name}, {dict(sizes)}: output {output} is {far:.2g} away from the reference; "
            "the pack was not published"
        )


def _too_far(answers: Mapping[str, Any], reference: _Reference, *, whole: bool) -> dict[str, float]:
    """Outputs that are neither near the reference nor, as the ``whole`` answer to the request, near float64's.

    A variance of E[x^2] - E[x]^2 may lose most digits: fp32 sums in the reference's order are then as far off as in another.
    """
    far = {name: difference(answer, reference.values[name]) for name, answer in answers.items()}
    far = {name: distance for name, distance in far.items() if distance > reference.most}
    exact = reference.in_double(far) if far and whole else {}
    return {
        name: distance
        for name, distance in far.items()
        if name not in exact or difference(answers[name], exact[name]) > reference.most
    }


def _elements(graph: Graph, sizes: Mapping[str, int]) -> float:
    """Elements of all tensors that nodes make at a request."""
    shapes = Counter(graph.types[name].shape for name in {node.output for node in graph.nodes})  # most come many times
    return float(sum(count * prod(evaluate(extent, sizes) for extent in shape) for shape, count in shapes.items()))


def main(pack: str, file: str, shapes: str, counter: str = "", subgraph: str = "") -> int:
    """Check one pack's model; says what is wrong."""
    try:
        model_file, placed = Path(file), read_manifest(Path(pack)).on_device
        number = int(subgraph) if subgraph else None

        def at_sizes(sizes: Mapping[str, int]) -> Graph:
            result = graph_of(model_file, shapes, sizes, defaults=not placed, subgraph=number)
            return result if placed else fp16_to_fp32(result)

        graph = graph_of(model_file, shapes, defaults=not placed, subgraph=number)
        name, counted = name_of(model_file, number), Path(counter) if counter else None
        check_model(Path(pack), name, graph, spans_of(graph, shapes), at_sizes, counted)
    except HaotunerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except MemoryError as error:  # of numpy, which makes every tensor of the model
        message = f"numpy's reference of the smallest requests of {shapes} needs more memory than there is ({error})"
        print(f"{message}; begin the ranges lower, or tune where there is more", file=sys.stderr)
        return PackInvalid.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:6]))
