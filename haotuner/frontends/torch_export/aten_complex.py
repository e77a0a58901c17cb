"""Complex tensors of torch: two real ones side by side. Fourier transforms are products with a matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.onnx import special_functions
from haotuner.frontends.onnx.fourier import LONGEST, mirrored, turning
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph.extents import Extent, canonical, floor_division
from haotuner.graph.types import numpy_dtype


@dataclass(frozen=True, slots=True)
class Complex:
    """Names of the tensors of the real and of the imaginary parts; of one shape."""

    real: str
    imag: str


def has_complex(values: Any) -> bool:
    """True if a complex tensor or number is among arguments."""
    if isinstance(values, (list, tuple)):
        return any(map(has_complex, values))
    return isinstance(values, (Complex, complex))


def called(a: AtenContext, rules: Mapping[str, Rule]) -> Any:
    """Result of a call with complex arguments. UsageError where it has no rule for them."""
    if a.op in COMPLEX:
        return COMPLEX[a.op](a)
    if a.op in _BY_PART:
        real, imag = (rules[a.op](replace(a, inputs=_parts(a.inputs, which))) for which in ("real", "imag"))
        return [*map(Complex, real, imag)] if isinstance(real, list) else Complex(real, imag)
    raise UsageError(f"{a.op} of complex numbers has no rule. Compute with real and imaginary parts (torch.view_as_real)")


def _parts(values: Sequence[Any], which: str) -> list[Any]:
    return [
        _parts(value, which) if isinstance(value, list) else getattr(value, which) if isinstance(value, Complex) else value
        for value in values
    ]


def _pair(a: AtenContext, value: Any) -> tuple[Any, Any]:
    """Real and imaginary part; the latter is None of a real one."""
    if isinstance(value, Complex):
        return value.real, value.imag
    if isinstance(value, complex):
        return a.cast(value.real, a.dtype), a.cast(value.imag, a.dtype)
    return a.cast(value, a.dtype), None


def _angle(a: AtenContext) -> str:
    """Of a real number it is 0 or half a turn."""
    if isinstance(a.at(0), Complex):
        return special_functions.atan2(a.g, a.at(0).imag, a.at(0).real)
    x = a.cast(a.at(0), a.dtype)
    return a.g.map("select", a.g.map("isnan", x), x, a.g.map("mul", a.cast(a.g.map("less", x, 0), a.dtype), np.pi))


def _sum(function: str) -> Rule:
    def rule(a: AtenContext) -> Complex:
        (x, y), (u, v) = _pair(a, a.at(0)), _pair(a, a.at(1))
        if (alpha := a.named.get("alpha", 1)) != 1:
            u, v = a.g.map("mul", u, alpha), v and a.g.map("mul", v, alpha)
        zero = a.cast(0, a.dtype)
        real, imag = a.g.map(function, x, u), a.g.map(function, y or zero, v or zero)
        shape = a.g.types[real].shape  # a number that is added has none of its own
        return Complex(real, imag if a.g.types[imag].shape == shape else a.g.add("broadcast", imag, shape=shape))

    return rule


def _times(a: AtenContext) -> Complex:
    (x, y), (u, v) = _pair(a, a.at(0)), _pair(a, a.at(1))
    of = a.g.map
    if y is None:
        x, y, u, v = u, v, x, None
    if v is None:
        return Complex(of("mul", x, u), of("mul", y, u))
    return Complex(of("sub", of("mul", x, u), of("mul", y, v)), of("add", of("mul", x, v), of("mul", y, u)))


def _over(a: AtenContext) -> Complex:
    (x, y), (u, v) = _pair(a, a.at(0)), _pair(a, a.at(1))
    of = a.g.map
    if v is None:
        return Complex(of("div", x, u), of("div", y, u))
    size = of("add", of("mul", u, u), of("mul", v, v))
    y = a.cast(0, a.dtype) if y is None else y
    return Complex(
        of("div", of("add", of("mul", x, u), of("mul", y, v)), size),
        of("div", of("sub", of("mul", y, u), of("mul", x, v)), size),
    )


def _magnitude(a: AtenContext) -> str:
    x, y = _pair(a, a.at(0))
    return a.g.map("sqrt", a.g.map("add", a.g.map("mul", x, x), a.g.map("mul", y, y)))


def _as_real(a: AtenContext) -> str:
    return a.onnx("Concat", *(a.onnx("Unsqueeze", tensor, a.whole(-1)) for tensor in _pair(a, a.at(0))), axis=-1)


def _as_complex(a: AtenContext) -> Complex:
    return Complex(*(a.onnx("Gather", a.at(0), a.whole_scalar(index), axis=-1) for index in (0, 1)))


def _transform(a: AtenContext, value: Any, axis: int, matrices: Sequence[Any]) -> tuple[str, str | None]:
    """Along one axis: real and imaginary part of a product with (length, kept) cosines and sines, by parts of ``value``.

    ``matrices``: real of real, imaginary of real, real of imaginary, imaginary of imaginary; None: not wanted.
    """
    x, y = _pair(a, value)
    rank = len(a.g.types[x].shape)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]

    def part(of_real: Any, of_imag: Any) -> str | None:
        result = None
        for tensor, matrix in ((x, of_real), (y, of_imag)):
            if tensor is None or matrix is None:
                continue
            known = not isinstance(matrix, str)
            stored = a.g.constant(np.ascontiguousarray(matrix.astype(numpy_dtype(a.dtype)))) if known else matrix
            item = a.onnx("MatMul", tensor if axis == rank - 1 else a.onnx("Transpose", tensor, perm=order), stored)
            result = item if result is None else a.g.map("add", result, item)
        return result if result is None or axis == rank - 1 else a.onnx("Transpose", result, perm=order)

    real = part(matrices[0], matrices[2])
    assert real is not None
    return real, part(matrices[1], matrices[3])


def _length(a: AtenContext, value: Any, axis: int) -> Extent:
    return a.g.types[_pair(a, value)[0]].shape[axis]


def _turns(a: AtenContext, length: Extent, length_: Extent, kept_length: Extent, how: int) -> tuple[Any, Any]:
    """Cosines and sines, (given, kept), scaled: arrays in float64, or tensors where the request decides."""
    if not (isinstance(length, int) and isinstance(length_, int)):
        scale = a.cast(length, a.dtype)
        scale = (a.cast(1, a.dtype), a.g.map("sqrt", scale), scale)[how]
        cos, sin = turning(a.g, length, length_, kept_length, a.dtype)
        return a.g.map("div", cos, scale), a.g.map("div", sin, scale)
    if length > LONGEST:
        raise UsageError(f"{a.op}: a transform of {length} elements; up to {LONGEST} are products with a matrix")
    angles = np.outer(np.arange(length_), np.arange(kept_length)) % length * (2 * np.pi / length)
    return np.cos(angles) * _scale(length, how), np.sin(angles) * _scale(length, how)


def _scale(length: int, how: int) -> float:
    """Torch's modes: none, by the root of the length, by the length."""
    return (1.0, length**-0.5, 1.0 / length)[how]


def _minus(a: AtenContext, matrix: Any) -> Any:
    return a.g.map("neg", matrix) if isinstance(matrix, str) else -matrix


def _full_transform(a: AtenContext, value: Any, axis: int, how: int, forward: bool) -> Complex:
    length = _length(a, value, axis)
    cos, sin = _turns(a, length, length, length, how)
    back = _minus(a, sin)
    real, imag = _transform(a, value, axis, (cos, *((back, sin) if forward else (sin, back)), cos))
    assert imag is not None
    return Complex(real, imag)


def _axes(a: AtenContext, value: Any) -> list[int]:
    rank = len(a.g.types[_pair(a, value)[0]].shape)
    return [tensor % rank for tensor in a.at(1)]


def _of_real(a: AtenContext) -> Complex:
    value, how = a.at(0), a.at(2, 0)
    *others, last = _axes(a, value)
    length = _length(a, value, last)
    selected = canonical(floor_division(length, 2) + 1) if a.at(3, True) else length
    cos, sin = _turns(a, length, length, selected, how)
    real, imag = _transform(a, value, last, (cos, _minus(a, sin), None, None))
    assert imag is not None
    result = Complex(real, imag)
    for axis in others:
        result = _full_transform(a, result, axis, how, True)
    return result


def _of_complex(a: AtenContext) -> Complex:
    result: Complex = a.at(0)
    for axis in _axes(a, result):
        result = _full_transform(a, result, axis, a.at(2, 0), bool(a.at(3, True)))
    return result


def _to_real(a: AtenContext) -> str:
    """Back from half of the frequencies; the other half mirrors them."""
    value, how, length = a.at(0), a.at(2, 0), a.at(3)
    *others, last = _axes(a, value)
    for axis in others:
        value = _full_transform(a, value, axis, how, False)
    inputs = _length(a, value, last)
    cos, sin = _turns(a, length, inputs, length, how)
    if isinstance(cos, str):
        counts = mirrored(a.g, length, inputs, a.dtype)
        cos, sin = (a.g.map("mul", item, counts) for item in (cos, sin))
        return _transform(a, value, last, (cos, None, _minus(a, sin), None))[0]
    twice = np.full((inputs, 1), 2.0)
    twice[[item for item in (0, length - length // 2) if item < inputs and 2 * item % length == 0]] = 1.0
    twice[length // 2 + 1 :] = 0.0
    return _transform(a, value, last, (cos * twice, None, -sin * twice, None))[0]


def _turned_by(a: AtenContext) -> Complex:
    return Complex(a.g.map("mul", a.at(0), a.g.map("cos", a.at(1))), a.g.map("mul", a.at(0), a.g.map("sin", a.at(1))))


def _conjugate(a: AtenContext) -> Complex:
    x, y = _pair(a, a.at(0))
    return Complex(x, a.g.map("neg", y))


def _exponential(a: AtenContext) -> Complex:
    x, y = _pair(a, a.at(0))
    size = a.g.map("exp", x)
    return Complex(a.g.map("mul", size, a.g.map("cos", y)), a.g.map("mul", size, a.g.map("sin", y)))


def _complex_of(a: AtenContext) -> Complex:
    return Complex(str(a.at(0)), str(a.at(1)))


# What moves elements, or computes each part as it would a real tensor.
_MOVES = """
view.default _unsafe_view.default reshape.default permute.default transpose.int t.default expand.default
unsqueeze.default squeeze.dim squeeze.dims squeeze.default slice.Tensor select.int cat.default clone.default
alias.default detach.default contiguous.default index_select.default split_with_sizes.default split.Tensor
unbind.int flip.default roll.default repeat.default unfold.default constant_pad_nd.default
neg.default sum.dim_IntList mean.dim
"""
_BY_PART = frozenset(_MOVES.split())

COMPLEX: Mapping[str, Callable[[AtenContext], Any]] = {
    **{f"{name}.{kind}": rule for name, rule in
       (("add", _sum("add")), ("sub", _sum("sub")), ("mul", _times), ("div", _over)) for kind in ("Tensor", "Scalar")},
    "abs.default": _magnitude, "view_as_real.default": _as_real, "view_as_complex.default": _as_complex,
    "angle.default": _angle,
    "complex.default": _complex_of, "polar.default": _turned_by,
    "_conj.default": _conjugate, "_conj_physical.default": _conjugate, "conj_physical.default": _conjugate,
    "exp.default": _exponential,
    "_fft_r2c.default": _of_real, "_fft_c2c.default": _of_complex, "_fft_c2r.default": _to_real,
}  # fmt: skip
