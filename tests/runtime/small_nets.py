"""Small ONNX models of several nodes, of what real ones have: arithmetic of shapes, indices, windows, layers, branches."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np


@cache
def nets() -> list[tuple[Any, dict[str, Any]]]:
    """Models, and arrays for their inputs."""
    return [_of(*net) for net in (_encoder(), _image(), _moved(), _counted(), _bytes())]


def _of(text: str, weights: dict[str, Any], arrays: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    import onnx

    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in weights.items())
    return model, arrays


def _numbers(*shape: int) -> Any:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) / 2).astype(np.float32)


def _ints(*values: int) -> Any:
    return np.array(values, np.int64)


def _encoder() -> tuple[str, dict[str, Any], dict[str, Any]]:
    text = """agraph (int64[b,t] ids, float[b,t] mask) => (float[b,c] y, int64[b] best) {
        h = Gather(words, ids)
        n = LayerNormalization(h, scale, shift)
        s = Shape(ids)
        bt = Slice(s, zero, two)
        four = Concat<axis = 0>(bt, heads)
        qkv = MatMul(n, w)
        q, k, v = Split<axis = 2>(qkv)
        q4 = Reshape(q, four)
        k4 = Reshape(k, four)
        v4 = Reshape(v, four)
        qt = Transpose<perm = [0, 2, 1, 3]>(q4)
        kt = Transpose<perm = [0, 2, 3, 1]>(k4)
        vt = Transpose<perm = [0, 2, 1, 3]>(v4)
        a = MatMul(qt, kt)
        m = Unsqueeze(mask, places)
        am = Add(a, m)
        p = Softmax<axis = -1>(am)
        o = MatMul(p, vt)
        ot = Transpose<perm = [0, 2, 1, 3]>(o)
        three = Concat<axis = 0>(bt, last)
        r = Reshape(ot, three)
        y = ReduceMean<axes = [1], keepdims = 0>(r)
        best = ArgMax<axis = 1, keepdims = 0>(y)
    }"""
    weights = {"words": _numbers(11, 8), "scale": _numbers(8), "shift": _numbers(8), "w": _numbers(8, 24),
               "zero": _ints(0), "two": _ints(2), "heads": _ints(2, 4), "places": _ints(1, 2), "last": _ints(8)}  # fmt: skip
    return text, weights, {"ids": np.arange(10).reshape(2, 5) % 11, "mask": _numbers(2, 5)}


def _image() -> tuple[str, dict[str, Any], dict[str, Any]]:
    text = """agraph (float[b,3,h,w] x) => (float[b,q] y, float[b,4,u,v] z) {
        c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(x, w1, b1)
        r = Relu(c)
        d = Conv<group = 4, kernel_shape = [3, 3], pads = [1, 1, 1, 1], dilations = [1, 1]>(r, w2)
        p = MaxPool<kernel_shape = [2, 2], strides = [1, 1], pads = [0, 0, 1, 1]>(d)
        a = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], ceil_mode = 1, strides = [2, 2]>(p)
        t = ConvTranspose<strides = [2, 2], kernel_shape = [2, 2]>(a, w3)
        s = Shape(x)
        hw = Slice(s, two, four)
        nc = Slice(s, zero, one)
        sizes = Concat<axis = 0>(nc, channels, hw)
        z = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(t, , , sizes)
        g = GlobalAveragePool(z)
        y = Flatten(g)
    }"""
    weights = {"w1": _numbers(4, 3, 3, 3), "b1": _numbers(4), "w2": _numbers(4, 1, 3, 3), "w3": _numbers(4, 4, 2, 2),
               "zero": _ints(0), "one": _ints(1), "two": _ints(2), "four": _ints(4), "channels": _ints(4)}  # fmt: skip
    return text, weights, {"x": _numbers(2, 3, 7, 9)}


def _moved() -> tuple[str, dict[str, Any], dict[str, Any]]:
    text = """agraph (float[n,m] x, int64[k] at, int64[k,1] to) => (float[n,m] y, float[p,q] z, float[k,m] top) {
        rows = Gather<axis = 0>(x, at)
        y = ScatterND(x, to, rows)
        padded = Pad<mode = "reflect">(y, pads)
        cut = Slice(padded, starts, ends, axes, steps)
        e = GatherElements<axis = 1>(cut, places)
        z = Concat<axis = 0>(e, e)
        top, which = TopK<axis = 0>(rows, one)
    }"""
    weights = {"pads": _ints(1, 1, 0, 1), "starts": _ints(-1, 0), "ends": _ints(-(2**63), 2**63 - 1), "axes": _ints(0, 1),
               "steps": _ints(-2, 1), "places": _ints(0, -1, 1, 0).reshape(2, 2), "one": _ints(1)}  # fmt: skip
    return text, weights, {"x": _numbers(4, 3), "at": _ints(2, 0), "to": _ints(1, 3).reshape(2, 1)}


def _counted() -> tuple[str, dict[str, Any], dict[str, Any]]:
    text = """agraph (float[n] x, int64[1] count, float[n] w) => (float[c] y, int64[1,k] places, float[c] s) {
        big = Greater(x, w)
        places = NonZero(big)
        flat = Squeeze(places, axes)
        y = Gather(x, flat)
        wide = Expand(one, count)
        scalar = Squeeze(count, axes)
        r = Range(zero, scalar, step)
        f = Cast<to = 1>(r)
        s = Mul(f, wide)
    }"""
    weights = {"axes": _ints(0), "one": np.ones(1, np.float32), "zero": np.array(0, np.int64), "step": np.array(1, np.int64)}
    return text, weights, {"x": _numbers(6), "count": _ints(3), "w": _numbers(6)}


def _bytes() -> tuple[str, dict[str, Any], dict[str, Any]]:
    text = """agraph (float[n,4] x, float[n,4] d) => (float[n,5] y, int64[n,4] z) {
        q, qs, qz = DynamicQuantizeLinear(x)
        i = MatMulInteger(q, w, qz)
        f = Cast<to = 1>(i)
        y = Mul(f, qs)
        whole = Cast<to = 7>(d)
        half = Div(whole, two)
        m = Mod(half, three)
        sum = CumSum<exclusive = 1>(m, axis)
        z = Mul(sum, sum)
    }"""
    weights = {
        "w": (np.arange(20).reshape(4, 5) - 9).astype(np.int8),
        "two": _ints(2),
        "three": _ints(3),
        "axis": np.array(1),
    }
    return text, weights, {"x": _numbers(3, 4), "d": _numbers(3, 4) * 9}
