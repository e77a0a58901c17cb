"""Verify a pack: files, schema, host, then numbers against float64 on shapes where plans change. Base install only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.errors import HaotunerError
from haotuner.host.processor import missing_flags, usable_cores
from haotuner.ops.convolution import is_convolution
from haotuner.ops.groups import GROUPS
from haotuner.ops.index import kind_named
from haotuner.pack.folder import MODELS
from haotuner.pack.library_file import check_library
from haotuner.pack.manifest import Manifest, read_level, read_levels, read_manifest
from haotuner.pack.op import PackOp
from haotuner.runtime.model_bound import opened_model, opened_weights
from haotuner.spec import numerics
from haotuner.spec.bytecode import VERSION, bytecode_of, words_of
from haotuner.spec.call_case import CallCase
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.verify.batch_invariance import check_image_bits, check_product_bits
from haotuner.verify.device_numbers import check_numbers, ordinal_for, unchecked

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack

RANDOM_SHAPES = 6  # beside the boundaries, drawn with a fixed seed
LARGEST_FLOPS = 4e9  # of one check in float64: about a second; larger m are checked through smaller ones of the same plan

FEW_OPS = 4  # that have so much each

FLOPS_AN_ELEMENT = 250.0  # of data: a reference in numpy walks through an array some ten times, at 100 ns an element in all


def verify(path: Path, *, seed: int = 0, most_flops: float | None = None) -> list[str]:
    """Every problem found, in words; empty when the pack is sound and right.

    Of a pack with several levels, the files of all are checked, and the numbers of those that this host can run;
    ``not_verified`` says what was left.
    ``most_flops``: of one check; calls of more are not made, but for one tile of each kernel. None: ``LARGEST_FLOPS``, which
    a pack of many ops shares, for a model may have a hundred.
    """
    try:
        levels = read_levels(path)
        if most_flops is None:
            count = len((read_manifest(path) if levels is None else read_level(path, next(iter(levels)), levels)).ops)
            most_flops = LARGEST_FLOPS * min(1.0, FEW_OPS / max(1, count))
        if levels is None:
            return _verify_plain(path, seed, most_flops)
        problems = []
        for level in levels:
            manifest = read_level(path, level, levels)
            check_library(path, manifest)
            if manifest.on_device:
                problems += [f"{level}: {problem}" for problem in check_numbers(path / level, manifest, seed, most_flops)]
            elif not missing_flags(level):
                problems += [f"{level}: {problem}" for problem in _verify_plain(path / level, seed, most_flops)]
    except HaotunerError as error:
        return [str(error)]
    return problems


def not_verified(path: Path) -> list[str]:
    """Parts of a sound pack that cannot be checked on this host, in words."""
    levels = read_levels(path)
    if levels is None:
        return _unchecked(read_manifest(path))
    return [f"{level}: {why}" for level in levels for why in _unchecked(read_level(path, level, levels))]


def _unchecked(manifest: Manifest) -> list[str]:
    unknown = [op.name for op in manifest.ops if op.group and op.kind not in GROUPS]
    why = f"results of {', '.join(unknown)} were not checked: `haotuner verify` does, with haotuner[tune]" if unknown else ""
    return [reason for reason in (unchecked(manifest), why) if reason]


def _verify_plain(path: Path, seed: int, most_flops: float) -> list[str]:
    from haotuner.runtime.pack import Pack

    problems: list[str] = []
    try:
        manifest = read_manifest(path)
        if manifest.on_device:
            check_library(path, manifest)
            problems += [*_check_facts(manifest), *_check_weights(path, manifest)]
            ordinal = ordinal_for(manifest) if manifest.models and not problems else None
            if ordinal is not None:
                with Pack(path, device=f"cuda:{ordinal}") as pack:
                    problems += _check_models(pack)
            return [*problems, *check_numbers(path, manifest, seed, most_flops)]
        with Pack(path) as pack:
            manifest = pack.manifest
            problems += [*_check_facts(manifest), *_check_weights(path, manifest)]
            problems += _check_models(pack, {problem.split(":")[0].removeprefix("model ") for problem in problems})
            counts = sorted({t for op in pack.manifest.ops for t in op.threads} | {1, usable_cores()})
    except HaotunerError as error:
        return [str(error)]
    with ExitStack() as opened:
        packs = {threads: opened.enter_context(Pack(path, threads)) for threads in counts}
        for op in manifest.ops:
            problems += _check_op(packs, op, np.random.default_rng(seed), most_flops)
    if manifest.batch_invariant:
        for op in manifest.ops:
            problems += _check_bits(path, op, counts, np.random.default_rng(seed), most_flops)
    return problems


def _check_facts(manifest: Manifest) -> list[str]:
    """Facts of ops that lie in a file of their own, which opening a pack does not read."""
    try:
        for op in manifest.ops:
            len(op.facts)
    except HaotunerError as error:
        return [str(error)]
    return []


def _check_weights(path: Path, manifest: Manifest) -> list[str]:
    """Weights of whole models against their hashes."""
    problems = []
    for name, files in manifest.models.items():
        try:
            with opened_weights(path / MODELS / files.weights, files) as weights:
                same = hashlib.file_digest(weights, "sha256").hexdigest() == files.weights_sha256
        except HaotunerError as error:
            problems.append(f"model {name}: {error}")
            continue
        if not same:
            problems.append(f"model {name}: its weights were changed or cut; restore the pack or tune again")
    return problems


def _check_models(pack: Pack, damaged: Collection[str] = ()) -> list[str]:
    """That schedules of whole models name what the pack has, and say the same to people as to the library.

    Models whose weights are damaged are left out.
    """
    problems = []
    for name, files in pack.manifest.models.items():
        if name in damaged:
            continue
        try:
            model = pack.model(name)
            with opened_model(pack.path, pack.manifest, name) as opened:
                bytecode = opened.bytecode
            if bytecode is None or words_of(bytecode)[1] != VERSION:
                continue  # of an older haotuner, or a chain of which the library knows the segments alone
            if bytecode != bytecode_of(model.document, files.weights_bytes):
                problems.append(f"model {name}: its bytecode is another schedule than its document; tune again")
        except (HaotunerError, KeyError, TypeError, ValueError) as error:
            problems.append(f"model {name}: {error}")
    return problems


def _cost(meaning: Op, shape: Shape) -> float:
    """Flops of a check, or what its tensors take of that time: softmax of a gigabyte has few flops."""
    extents, options = meaning.extents(shape), meaning.all_options()
    moved = sum(prod(o.shape(extents, options)) for o in meaning.meaning.operands if o.role != "constant")
    return max(meaning.flops(shape), FLOPS_AN_ELEMENT * moved)


def _shapes(op: PackOp, meaning: Op, rng: np.random.Generator, most_flops: float) -> list[Shape]:
    """Shapes where plans change, along each dynamic axis, and random ones; all small enough to check in float64.

    A call that has one tile of each kernel is made whatever it takes.
    """
    lowest = {axis.name: axis.first for axis in op.dynamic}
    for axis in op.dynamic:
        one_tile = lowest | {axis.name: max(tile.get(axis.name, 1) for tile in op.tiles) + 1}
        most_flops = max(most_flops, _cost(meaning, Shape.of(one_tile)))
    result = {Shape.of(lowest)}
    for axis in op.dynamic:
        tiles = [tile.get(axis.name, 1) for tile in op.tiles]
        most = axis.last + 2 * max(tiles)
        while most > 1 and _cost(meaning, Shape.of(lowest | {axis.name: most})) > most_flops:
            most = most // 2 + 1 if most > 3 else most - 1
        edges = {1, 2, 3, axis.first, axis.last, axis.last + 1, most} | {tile + d for tile in tiles for d in (-1, 0, 1)}
        edges |= {int(extent) for extent in np.exp(rng.uniform(0, np.log(max(most, 2)), RANDOM_SHAPES))}
        result |= {Shape.of(lowest | {axis.name: extent}) for extent in edges if 1 <= extent <= most}
    if len(op.dynamic) > 1:
        for _ in range(4 * RANDOM_SHAPES):
            drawn = {axis.name: int(np.exp(rng.uniform(0, np.log(axis.last + 1)))) for axis in op.dynamic}
            result.add(Shape.of(drawn))
    possible = (shape for shape in result if min(meaning.extents(shape).values()) >= 1)  # some leave nothing of an image
    return sorted((shape for shape in possible if _cost(meaning, shape) <= most_flops), key=str)


def _call(pack: Pack, op: PackOp, inputs: Mapping[str, Any]) -> Callable[[Mapping[str, Any], Any], Any]:
    """A function of (inputs, out) that serves the op; a dense weight is bound once, here."""
    if is_convolution(op.kind):
        constants = {o.name: inputs[o.name] for o in op.extra if o.role == "constant"}
        result, names = pack.op(op.name).bind(inputs["weight"], **constants), [o.name for o in op.extra if o.role == "input"]
        return lambda inputs, out: result(inputs["x"], out=out, **{name: inputs[name] for name in names})
    if op.kind != "dense":
        return lambda inputs, out: pack.op(op.name).run(out=out, **inputs)
    bound = {o.name: inputs[o.name] for o in op.extra if o.role == "constant"}
    linear = pack.op(op.name).bind(inputs["weight"], **bound)
    passed = [o.name for o in op.extra if o.role == "input"]
    return lambda inputs, out: linear(inputs["x"], out=out, **{name: inputs[name] for name in passed})


def _check_bits(path: Path, op: PackOp, counts: list[int], rng: np.random.Generator, most_flops: float) -> list[str]:
    """The promise of a batch-invariant pack: rows of a large batch are the bits of a small one, from either end."""
    from haotuner.runtime.pack import Pack

    if op.kind == "batch_matmul":
        return check_product_bits(path, op, counts, rng)
    if is_convolution(op.kind):
        return check_image_bits(path, op, counts, rng)
    if op.kind != "dense":
        return []
    meaning = op.op
    shapes = [shape["m"] for shape in _shapes(op, meaning, rng, most_flops)]
    drawn = CallCase.drawn(meaning, Shape.of(m=max(shapes)), rng).operands
    x = drawn["x"]
    passed = [o.name for o in op.extra if o.role == "input"]
    whole = None
    problems = []
    for threads in counts:
        with Pack(path, threads) as pack:
            linear = _call(pack, op, drawn)

            def part(rows: slice, call: Callable[[Mapping[str, Any], Any], Any] = linear) -> Any:
                inputs = {"x": x[rows]} | {name: drawn[name][rows] for name in passed}
                return call(inputs, np.empty((len(inputs["x"]), op.n), numerics.numpy_dtype(op.output.dtype)))

            whole = part(slice(None)) if whole is None else whole
            problems += [
                f"{op.name} m={m} threads={threads}: not the bits of a batch of {len(x)}, which the pack promises"
                for m in shapes
                if not (np.array_equal(part(slice(m)), whole[:m]) and np.array_equal(part(slice(-m, None)), whole[-m:]))
            ]
    return problems


def _check_op(packs: Mapping[int, Pack], op: PackOp, rng: np.random.Generator, most_flops: float) -> list[str]:
    """By packs of so many threads each: references, which take most of the time, are computed once for all."""
    if op.group and op.kind not in GROUPS:
        return []  # `not_verified` says so
    if not op.group and kind_named(op.kind) is None:
        return [
            f"{op.name}: this haotuner knows no kind {op.kind!r}, so its numbers cannot be checked; install a newer one, "
            "or the package that brings this kind"
        ]
    meaning = op.op
    shapes = _shapes(op, meaning, rng, most_flops)
    binds = op.kind == "dense" or is_convolution(op.kind)
    weights = CallCase.drawn(meaning, shapes[0], rng).operands if binds else {}
    constants = {o.name: weights[o.name] for o in op.inputs if o.role == "constant" and o.name in weights}
    calls, problems = {threads: _call(pack, op, weights) for threads, pack in packs.items()}, []
    computed = numerics.computed_by(op.kernels)
    for shape in shapes:
        case = CallCase.drawn(meaning, shape, rng, bound=constants, computed=computed)
        apart = {
            o.name: case.operands[o.name] if o.compact else numerics.spaced(case.operands[o.name], 3) for o in op.inputs
        }
        for threads, call in calls.items():
            outs = case.outputs()
            into = tuple(outs[operand.name].inner for operand in op.in_file_order)
            call(apart, into if len(into) > 1 else into[0])
            problems += case.problems(outs, f" threads={threads}")
    return problems
