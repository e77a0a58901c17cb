"""Bad calls of one op of each kind, and what each is answered: an error in words, or a result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import haotuner
from haotuner.backends.cpu.pack_source import PackedAny, pack_library
from haotuner.pack.write import write_pack
from tests.codegen.groups_beside import joint, mixed
from tests.run_folder import toolchain
from tests.runtime.conv_packs import packed_conv
from tests.runtime.packs import LANES, best_level, document, packed_op
from tests.runtime.product_packs import packed_product
from tests.runtime.test_generated import packed
from tests.runtime.typed_packs import typed_op

LEVEL = "x86-64-v2"  # texts name no instruction set
Calls = Iterator[tuple[str, Callable[[], Any]]]


def bad_calls_pack(folder: Path) -> Path:
    """A pack of dense, typed, convolution, product, row and several-output ops."""
    lanes, level = LANES[LEVEL], best_level()
    ops: list[PackedAny] = [
        packed_op("dense:n=12,k=5", lanes, 2 * lanes, (1,)),
        packed_op("dense:n=12,k=5,epilogue=bias+residual+clamp", lanes, 2 * lanes, (1,)),
        typed_op("dense:n=12,k=5,dtype=fp16", lanes, (1,)),
        packed_conv("conv2d:c=3,f=8,r=3,s=3,epilogue=bias+residual", lanes, (1,)),
        packed_conv("conv2d:c=3,f=8,r=3,s=3,dtype=int8", lanes, (1,)),
        packed_product("batch_matmul:layout=nt", lanes, (1,)),
        packed("softmax"),
        packed(next(op for op in joint(mixed(), "mixed") if len(op.meaning.written) > 1)),
    ]
    library = folder / "bad_calls.so"
    pack_library(ops, level, toolchain(), library)
    write_pack(folder / "pack", library, document(ops, level), lambda _: None)
    return folder / "pack"


def answers(path: Path, *, torch: bool) -> dict[str, str]:
    """What each bad call is answered: the error with its text, if that is haotuner's, or ``served``."""
    result: dict[str, str] = {}
    with haotuner.load(path, threads=1) as pack:
        for name in pack.ops:
            op = pack.op(name)
            calls = _layer(op, torch=torch) if hasattr(op, "bind") else _operator(op, torch=torch)
            result |= {f"{name}, {case}": _answer(call, name, path) for case, call in calls}
        late = [(name, pack.op(name)) for name in pack.ops]
        ready = [(name, op.bind(**_weights(op)) if hasattr(op, "bind") else op, _inputs(op)) for name, op in late]
    if not torch:
        for name, served, inputs in ready:
            call = served if hasattr(served, "twin") else served.run
            result[f"{name}, closed"] = _answer(partial(call, **inputs), name, path)
    return result


def _answer(call: Callable[[], Any], name: str, path: Path) -> str:
    try:
        call()
    except Exception as error:  # of every kind: which one it is, is what is compared
        text = str(error).replace(f"{path.parent}/", "")
        return f"{type(error).__name__}: {text}" if name in text or "pack" in text else type(error).__name__
    return "served"


def _shape(operand: Any, op: Any) -> tuple[int, ...]:
    extents = {axis.name: axis.extent for axis in op.entry.axes if axis.extent is not None}
    return tuple(extents.get(axis, {"h": 6, "w": 6, "p": 4, "q": 4, "k": 4}.get(axis, 3)) for axis in operand.dims)


def _array(operand: Any, op: Any) -> Any:
    kind = {"fp16": np.float16, "int8": np.int8, "uint8": np.uint8, "int32": np.int32}.get(operand.dtype, np.float32)
    shape = _shape(operand, op)
    return (np.arange(np.prod(shape)).reshape(shape) % 5 + 1).astype(kind)


def _weights(op: Any) -> dict[str, Any]:
    bound = [operand for operand in op.entry.operands if operand.role == "constant" and not operand.optional]
    weights = {operand.name: _array(operand, op) for operand in bound}
    return weights | ({"low": weights["high"] - 4} if "low" in weights else {})


def _inputs(op: Any) -> dict[str, Any]:
    return {operand.name: _array(operand, op) for operand in op.entry.inputs if operand.role == "input"}


def _layer(op: Any, *, torch: bool) -> Calls:
    weights, inputs = _weights(op), _inputs(op)
    bound = op.bind(**weights)
    yield from _calls(bound, inputs, _array(op.entry.output, op), torch=torch)
    if torch:
        th, tensors = _torch(weights)
        yield "bind: torch", lambda: op.bind(**tensors)
        yield "bind: weight of a device", lambda: op.bind(**(tensors | {"weight": tensors["weight"].to("meta")}))
        yield "bind: weight of another type", lambda: op.bind(**(tensors | {"weight": tensors["weight"].to(th.float64)}))
        return
    for name, value in weights.items():
        yield f"bind: {name} of float64", partial(op.bind, **(weights | {name: weights[name].astype(np.float64)}))
        yield f"bind: {name} of another shape", partial(op.bind, **(weights | {name: weights[name][1:]}))
        yield f"bind: {name} a text", partial(op.bind, **(weights | {name: "abc"}))
        yield f"bind: {name} of one axis more", partial(op.bind, **(weights | {name: value[None]}))
    yield "bind: an unknown name", lambda: op.bind(**weights, colour=np.zeros(3, np.float32))
    yield "bind: a scale beside", lambda: op.bind(**weights, scale=np.ones(12, np.float32))
    yield "bind: a bias alone", lambda: op.bind(weights["weight"], np.ones(_shape(op.entry.output, op)[-1], np.float32))
    yield "bind: a number for all", lambda: op.bind(weights["weight"], **{n: 1.0 for n in weights if n != "weight"})
    yield "bind: threads=0", lambda: op.bind(**weights, threads=0)
    yield "rebind: an unknown name", lambda: bound.rebind(**weights, colour=np.zeros(3, np.float32))
    if "low" in weights:
        yield "bind: low above high", lambda: op.bind(**(weights | {"low": weights["high"] + 1}))


def _operator(op: Any, *, torch: bool) -> Calls:
    inputs = _inputs(op)
    outs = tuple(_array(operand, op) for operand in op.entry.in_file_order)
    yield from _calls(op.run, inputs, outs if len(outs) > 1 else outs[0], torch=torch)
    if torch:
        return
    values = list(inputs.values())
    yield "in order", lambda: op.run(*values)
    yield "one in order too many", lambda: op.run(*values, values[0])
    yield "one in order and by name", lambda: op.run(*values, **{next(iter(inputs)): values[0]})
    if len(outs) > 1:
        yield "out: one of several", lambda: op.run(**inputs, out=outs[0])
        yield "out: several but one", lambda: op.run(**inputs, out=outs[1:])


def _calls(call: Callable[..., Any], inputs: dict[str, Any], out: Any, *, torch: bool) -> Calls:
    if torch:
        yield from _torch_calls(call, inputs, out)
        return

    def changed(name: str, change: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: call(**(inputs | {name: change(inputs[name])}))

    yield "right", lambda: call(**inputs)
    yield "right with out", lambda: call(**inputs, out=out)
    for name in inputs:
        yield f"{name} of float64", changed(name, lambda value: value.astype(np.float64))
        yield f"{name} of the other byte order", changed(name, lambda value: value.astype(value.dtype.newbyteorder()))
        yield f"{name} of no axes", changed(name, lambda value: value[(0,) * value.ndim])
        yield f"{name} a number", changed(name, lambda value: 3)
        yield f"{name} a list", changed(name, lambda value: value.tolist())
        yield f"{name} of one axis", changed(name, lambda value: value.reshape(-1))
        yield f"{name} shorter at the end", changed(name, lambda value: value[..., 1:])
        yield f"{name} shorter at the front", changed(name, lambda value: value[1:])
        yield f"{name} of two elements a side", changed(name, lambda value: value[(..., *(slice(2),) * 2)])
        yield f"{name} backwards", changed(name, lambda value: value[..., ::-1])
        yield f"{name} read-only", changed(name, _frozen)
        yield f"{name} read-only and of float64", changed(name, lambda value: _frozen(value.astype(np.float64)))
        yield f"{name} missing", partial(call, **{n: value for n, value in inputs.items() if n != name})
    yield "an unknown operand", lambda: call(**inputs, colour=out)
    changes: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("of float64", lambda value: value.astype(np.float64)),
        ("of another shape", lambda value: value[..., 1:].copy()),
        ("read-only", _frozen),
        ("a list", lambda value: value.tolist()),
    )
    for case, change in changes:
        whole = tuple(map(change, out)) if isinstance(out, tuple) else change(out)
        yield f"out {case}", partial(call, **inputs, out=whole)


def _torch_calls(call: Callable[..., Any], inputs: dict[str, Any], out: Any) -> Calls:
    th, tensors = _torch(inputs)
    several = out if isinstance(out, tuple) else (out,)
    outs = tuple(th.from_numpy(value.copy()) for value in several)
    into = outs if isinstance(out, tuple) else outs[0]
    yield "torch", lambda: call(**tensors)
    yield "torch with out", lambda: call(**tensors, out=into)
    for name, value in tensors.items():
        for case, changed in (
            ("of float64", value.to(th.float64)),
            ("of a device", value.to("meta")),
            ("sparse", value.to_sparse()),
            ("of no axes", value.reshape(-1)[0]),
            ("negated", th._neg_view(value) if value.is_floating_point() else value),
            ("that wants a gradient", value.clone().requires_grad_() if value.is_floating_point() else value),
        ):
            yield f"torch: {name} {case}", partial(call, **(tensors | {name: changed}))
            yield f"torch: {name} {case}, with out", partial(call, **(tensors | {name: changed}), out=into)
    if all(value.is_floating_point() for value in outs):
        with_gradient = tuple(value.clone().requires_grad_() for value in outs)
        yield (
            "torch: out that wants a gradient",
            lambda: call(**tensors, out=with_gradient if len(with_gradient) > 1 else with_gradient[0]),
        )


def _torch(inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    th = sys.modules["torch"]
    return th, {name: th.from_numpy(value.copy()) for name, value in inputs.items()}


def _frozen(value: Any) -> Any:
    copy = value.copy()
    copy.flags.writeable = False
    return copy
