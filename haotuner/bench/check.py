"""The check of a result that is raced: some rows element by element, all of a linear op through signed sums of features."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.contender import Operands
from haotuner.microkernels.cpu.conv_winograd import filter_tiles
from haotuner.ops.convolution import filter_axes, is_convolution, windows
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.kind import FILTERED
from haotuner.ops.minimal_filtering import growth
from haotuner.ops.products import PRODUCT_OPTIONS
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.op import Op

CHECKED_FLOPS = 2**27  # of the rows, images or matrices that are compared element by element
SAFETY = 8.0  # see `_signed_share`
EPS = float(np.finfo(np.float32).eps) / 2  # unit roundoff


def error_share(case: CallCase, y: NDArray[Any]) -> float:
    """Largest error of a call's result as a share of what is allowed; over 1 (or inf) is wrong.

    In 16 bits every step of an epilogue may round its result, as libraries do which compute it step by step.
    """
    op = case.op
    if y.shape != op.operand_shape(op.meaning.output, case.shape):
        return math.inf
    if DTYPES[op.dtype_of(op.meaning.output)].eps and not np.isfinite(np.asarray(y, np.float32)).all():
        return math.inf
    axis = next((axis for axis in op.parallel if axis in op.dynamic), None)
    extent = 1 if axis is None else case.shape[axis]
    most = max(1, CHECKED_FLOPS * extent // max(1, op.flops(case.shape)))
    linear = _is_linear(op)
    share = _signed_share(case, y) if linear and most < extent else 0.0
    if linear and op.flops(case.shape) // extent > CHECKED_FLOPS:  # one image alone takes too long
        return max(share, _signed_share(case, y))
    return max(share, _direct_share(*_sampled(case, y, axis, most)))


def computed_by(op: Op) -> dict[str, str]:
    """Ways by which a library may get a result: convolutions in fp32 by minimal filtering, whose errors are larger."""
    tile = max(filter_tiles(op), default=0) if is_convolution(op.kind) and op.dtype == "fp32" else 0
    return {FILTERED: str(tile)} if tile else {}


def _direct_share(op: Op, operands: Operands, y: NDArray[Any]) -> float:
    want = numerics.reference(op, operands)
    eps = max(DTYPES[op.dtype_of(operand)].eps for operand in (op.meaning.operands[0], op.meaning.output))
    step_eps = max(eps, DTYPES["fp32"].eps)
    return numerics.compare(y, want, numerics.tolerance(op, operands, want, computed_by(op), step_eps=step_eps)).worst


def _sampled(case: CallCase, y: NDArray[Any], axis: str | None, most: int) -> tuple[Op, Operands, NDArray[Any]]:
    """As much of a call along one axis of its result as is soon compared: the first, the last and drawn ones."""
    op = case.op
    if axis is None or most >= case.shape[axis]:
        return op, dict(case.operands), y
    extent, rng, options = case.shape[axis], np.random.default_rng(case.shape[axis]), op.all_options()
    picked = {0, *([extent - 1] if most > 1 else [])}
    cuts = [name for name, cut in op.meaning.ends.items() if cut == axis]
    for name in cuts:  # the first and the last row of each group
        ends = case.operands[name]
        picked |= {int(end) + more for end in ends for more in (-1, 0) if 0 <= end + more < extent}
    rest = np.setdiff1d(np.arange(extent), sorted(picked))
    drawn = rng.choice(rest, max(0, min(len(rest), most - len(picked))), replace=False)
    rows = np.sort(np.concatenate((sorted(picked), drawn))).astype(np.int64)
    axes = {operand.name: operand.axes(options) for operand in op.meaning.inputs} | op.epilogue_operands
    operands = {name: _rows_of(values, axes[name], axis, rows) for name, values in case.operands.items()}
    operands |= {name: np.searchsorted(rows, case.operands[name]).astype(np.int32) for name in cuts}
    return op, operands, _rows_of(y, op.meaning.output.axes(options), axis, rows)


def _rows_of(values: NDArray[Any], axes: tuple[str, ...], axis: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    return values if axis not in axes else values.take(rows, axes.index(axis))


def _is_linear(op: Op) -> bool:
    """True if features of a result add up as those of the weight do: no epilogue, and sums that no narrower integer cuts."""
    product = op.kind == "dense" or is_convolution(op.kind)
    element_type = DTYPES[op.dtype_of(op.meaning.output)]
    return product and not op.epilogue and (element_type.eps > 0 or element_type.name == "int32")


def _signed_share(case: CallCase, y: NDArray[Any]) -> float:
    """The error of all features added up with random signs (Freivalds 1977), which is the op with one feature a group.

    A sum's error is about as large as one rounding of each of its terms. Those of the features are independent, so that of a
    signed sum of them grows with the root of their number (Higham and Mary 2019, theorem 3.1). It is narrow enough to refuse
    products of bf16 or TF32.
    """
    op, options = case.op, case.op.all_options()
    feature, channel = ("f", "c") if is_convolution(op.kind) else ("n", "k")
    groups = int(options.get("groups", "1"))
    each, element_type = op[feature] // groups, DTYPES[op.dtype_of(op.meaning.output)]
    x, weight = (np.asarray(case.operands[name], np.float64) for name in ("x", "weight"))
    signs = np.random.default_rng(x.size).choice((-1.0, 1.0), op[feature])
    added = _added(op, weight, signs, groups)
    single = replace(
        op,
        dtype="fp32",  # whose sums are not cut
        options=tuple(pair for pair in op.options if pair[0] not in PRODUCT_OPTIONS),
        static=tuple((axis, groups if axis == feature else extent) for axis, extent in op.static),
    )
    want = numerics.reference(single, {"x": x, "weight": added})
    at = op.meaning.output.axes(options).index(feature)
    result = np.moveaxis(np.asarray(y, np.float64), at, -1)
    parts = (*result.shape[:-1], groups, each)
    output = np.moveaxis((result * signs).reshape(parts).sum(-1), -1, at)
    if not element_type.eps:  # sums of integers are exact, and as fp64 still
        return 0.0 if np.array_equal(output, want) else math.inf
    largest = np.sqrt(each) * np.abs(weight).max()
    reach = numerics.reference(single, {"x": np.abs(x), "weight": np.full_like(added, largest)})
    tile = int(computed_by(op).get(FILTERED, "0"))
    grown = growth(tile, filter_axes(windows(op.kind, dict(op.static), options)), op[channel]) if tile else 0.0
    bound = max(SAFETY * EPS, grown) * reach + np.finfo(np.float32).tiny
    if element_type.eps > DTYPES["fp32"].eps:  # rounding of the results themselves
        norm = np.sqrt(np.square(result).reshape(parts).sum(-1))
        bound = bound + SAFETY * element_type.eps / 2 * np.moveaxis(norm, -1, at)
    return float((np.abs(output - want) / bound).max())


def _added(op: Op, weight: NDArray[np.float64], signs: NDArray[np.float64], groups: int) -> NDArray[np.float64]:
    """A weight with one feature a group: all features of the group added up, each with its sign."""
    if op.kind == "dense":
        return signs[None] @ weight if op.option("weight") == "nk" else weight @ signs[:, None]
    taps = (1,) * (weight.ndim - 2)
    if "transpose" in op.kind:  # (c, f/groups, *taps)
        of_group = signs.reshape(groups, 1, -1, *taps) * weight.reshape(groups, -1, *weight.shape[1:])
        return np.asarray(of_group.sum(axis=2).reshape(-1, 1, *weight.shape[2:]))
    signed = signs.reshape(-1, 1, *taps) * weight
    return np.asarray(signed.reshape(groups, -1, *weight.shape[1:]).sum(axis=1))
