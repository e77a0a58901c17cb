"""Reader of a ``torch.export`` program: it becomes a graph, its symbolic sizes kept as named dimensions."""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import sympy

from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.proofs import Proof
from haotuner.frontends.onnx.read import finished
from haotuner.frontends.onnx.table import refuse
from haotuner.frontends.onnx.typed_numbers import DataDependentError, cast, exact, mapped
from haotuner.frontends.torch_export.aten import ATEN
from haotuner.frontends.torch_export.aten_call import AtenContext
from haotuner.frontends.torch_export.aten_complex import COMPLEX, Complex, called, has_complex
from haotuner.frontends.torch_export.aten_guards import required
from haotuner.frontends.torch_export.aten_products import KEPT as PRODUCTS_KEPT
from haotuner.frontends.torch_export.aten_products import KEPT_ATTENTION as ATTENTION_KEPT
from haotuner.frontends.torch_export.aten_products import attention_taken_apart
from haotuner.frontends.torch_export.aten_recurrent import lengths_kept
from haotuner.frontends.torch_export.pt2_file import read_program
from haotuner.graph.extents import Extent, canonical, ceiling_division, dimension, floor_division, largest, same, smallest
from haotuner.graph.graph import Graph
from haotuner.graph.types import numpy_dtype

SUFFIX = ".pt2"
KEPT = (*PRODUCTS_KEPT, *ATTENTION_KEPT,
        "lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input", "roll.default", "instance_norm.default",
        "group_norm.default", "rms_norm.default", "pixel_shuffle.default", "unbind.int", "adaptive_avg_pool2d.default",
        "grid_sampler.default", "grid_sampler_2d.default", "grid_sampler_3d.default",
        *(f"{kind}_pad{rank}d.default" for kind in ("reflection", "replication") for rank in (1, 2, 3)),
        *(f"upsample_{name}.{how}" for how in ("vec", "default") for name in
          ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d", "bicubic2d")),
        *(f"_upsample_nearest_exact{rank}d.{how}" for how in ("vec", "default") for rank in (1, 2, 3)))  # fmt: skip
_NOTHING = (
    "_assert_scalar",
    "_assert_tensor_metadata",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
    "_assert_async",
    "sym_storage_offset",
)  # of where a view begins torch asserts that it is not before its tensor
UNBOUNDED = 1 << 40  # torch writes infinity, or the largest number of its type, for a size without a bound
COMPLEX_ALONE = COMPLEX.keys() - ATEN.keys()
_DTYPES = {
    "float32": "fp32",
    "float64": "fp64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "complex64": "fp32",
    "complex128": "fp64",
}  # of a complex one that of its parts


def read_exported(path: str | Path, sizes: Mapping[str, int] | None = None) -> Graph:
    """The graph of a file that ``torch.export.save`` wrote. Nothing in it runs; what would is refused.

    ``sizes``: dimensions that are numbers.

    Raises:
        UsageError: no such program, or with operators that have no rule; all of them are listed.
        EnvironmentMissing: torch is not installed.
    """
    torch = _torch()
    read = read_program(Path(path), torch)
    names = dict(line.split(" ", 1) for line in read.names.splitlines() if " " in line)
    return graph_of_program(read.program, names, read.guards, sizes)


def bounds_of(path: str | Path) -> dict[str, tuple[int, int | None]]:
    """Least and largest size of each dimension that a program's own constraints name, by its name; None: no largest."""
    read = read_program(Path(path), _torch())
    names = dict(line.split(" ", 1) for line in read.names.splitlines() if " " in line)
    for name, sizes in symbols_of(read.program).items():
        for axis, size in enumerate(sizes):
            if hasattr(size, "node") and getattr(size.node.expr, "is_Symbol", False):
                names.setdefault(str(size.node.expr), f"{name}_{axis}")
    result: dict[str, tuple[int, int | None]] = {}
    for symbol, span in read.program.range_constraints.items():
        if str(symbol) in names and getattr(span.lower, "is_finite", False):
            most = int(span.upper) if span.upper < UNBOUNDED else None
            result[names[str(symbol)]] = int(span.lower), most
    return result


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise EnvironmentMissing(
            "torch is not installed; pip install torch, or export the model to ONNX elsewhere"
        ) from error
    return torch


def graph_of_program(
    program: Any,
    names: Mapping[str, str],
    guards: Sequence[str] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """The graph of an ExportedProgram. ``names``: of its symbols; others are called by their input and axis.

    ``guards``: what it takes for granted of sizes; None: as the program itself says. ``sizes``: dimensions that are numbers.
    """
    with suppress(ImportError):
        importlib.import_module("ml_dtypes")  # tells numpy of bf16; what needs it says so where it is missing
    if guards is None:
        guards = tuple(getattr(program, "_guards_code", None) or ())  # lost by what follows
    with lengths_kept(_torch()):
        program = program.run_decompositions(_taken_apart())
    nodes = _live_nodes(list(program.graph.nodes))
    _refuse_unknown(nodes)
    return _Reader(program, dict(names), sizes or {}).read(nodes, guards)


def _taken_apart() -> Any:
    """Decompositions of torch, less what has a rule of its own: of an LSTM it makes a step for each token."""
    torch = _torch()
    table = torch.export.default_decompositions()
    for name in KEPT:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if operator is not None:
            table.pop(operator, None)
    table.update(attention_taken_apart(torch))
    return table


def _array(tensor: Any) -> Any:
    """A tensor as numpy has it; bf16, which torch does not give to numpy, by its bits."""
    if str(tensor.dtype) != "torch.bfloat16":
        return tensor.numpy()
    return tensor.view(_torch().int16).numpy().view(numpy_dtype("bf16"))


def symbols_of(program: Any) -> dict[str, list[Any]]:
    """Sizes of every input that the caller gives, as torch has them."""
    own = set(program.graph_signature.user_inputs)
    return {node.name: list(node.meta["val"].shape) for node in program.graph.nodes
            if node.op == "placeholder" and node.name in own and hasattr(node.meta.get("val"), "shape")}  # fmt: skip


def _name_of(target: Any) -> str:
    return str(target).removeprefix("aten.")


def _plain(name: str) -> bool:
    return name.split(".")[0] in (*_NOTHING, "sym_size", "_local_scalar_dense")


def _live_nodes(nodes: list[Any]) -> list[Any]:
    """Nodes that something reads. What only assertions read is left out, less what makes a symbol: shapes name those."""
    result: list[Any] = []
    selected: set[Any] = set()
    for node in reversed(nodes):
        own = getattr(node.meta.get("val"), "node", None)
        size = own is not None and bool(getattr(own.expr, "is_Symbol", False))
        asserts = node.op == "call_function" and _name_of(node.target).split(".")[0] in _NOTHING
        if node.op != "call_function" or size or not asserts and any(user in selected for user in node.users):
            selected.add(node)
            result.append(node)
    return result[::-1]


def _refuse_unknown(nodes: list[Any]) -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        name = _name_of(node.target)
        known = name in ATEN or name in COMPLEX or _plain(name)
        if node.op == "call_function" and str(node.target).startswith("aten.") and not known:
            where[name].append(f"node {node.name}{_module_of(node)}")
    refuse(where, "Export the model without them, or write them in other operators")


def _module_of(node: Any) -> str:
    """The innermost module that calls, by its path in the model."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]).removeprefix("L['self'].").removeprefix("L['self']") if stack else ""
    return f" in {path}" if path else ""


def _apart(names: Sequence[str]) -> list[str]:
    """Names of outputs, each its own: a tensor that a module returns more than once has a number behind its name."""
    result: list[str] = []
    for name in names:
        free = (f"{name}_{count}" for count in range(2, len(names) + 2))
        result.append(name if name not in result else next(item for item in free if item not in (*result, *names)))
    return result


# Of torch's symbolic arithmetic: what makes a whole number of a real one, and what it is behind; functions of real numbers.
_ROUNDED = {"FloorToInt": "floor", "CeilToInt": "ceil", "RoundToInt": "round", "TruncToInt": ""}
_HALF = sympy.Rational(1, 2)
_OF_REALS = {"IntTrueDiv": "div", "FloatTrueDiv": "div", "Add": "add", "Mul": "mul", "FloatPow": "pow", "Pow": "pow",
             "Max": "max", "Min": "min"}  # fmt: skip


class _Reader:
    def __init__(self, program: Any, names: dict[str, str], sizes: Mapping[str, int]) -> None:
        self.program, self.names, self.sizes = program, names, sizes
        self.g = ConstantFolding()
        self.of_data: dict[str, Extent] = {}  # what stands for a symbol that no input's size says
        self.values: dict[str, Any] = {}  # by the node's name: a tensor's name, an extent, a number, a list

    def read(self, nodes: list[Any], guards: Sequence[str]) -> Graph:
        for name, sizes in symbols_of(self.program).items():
            for axis, size in enumerate(sizes):
                if hasattr(size, "node") and getattr(size.node.expr, "is_Symbol", False):
                    self.names.setdefault(str(size.node.expr), f"{name}_{axis}")
        inputs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        outputs: list[tuple[str, str]] = []
        for node in nodes:
            if node.op == "placeholder":
                self.values[node.name] = self._placeholder(node, inputs[node.name])
            elif node.op == "call_function":
                try:
                    self.values[node.name] = self._called(node)
                except UsageError as error:
                    raise UsageError(f"node {node.name}: {error}") from error
            elif node.op == "output":
                given_back = [argument.name for argument in self._returned(node)]
                outputs = [(name, self._real(item)) for name, item in zip(_apart(given_back), given_back, strict=True)]
        shapes = {name: self.g.types[name].shape for name in self.g.inputs}
        self.g.required += required(guards, shapes, [str(node.target) for node in nodes])
        return finished(self.g, outputs)

    def _returned(self, node: Any) -> list[Any]:
        """Tensors that the module returns, without those that it changes in place.

        UsageError where these are buffers that it reads again: a pack computes with what they were.
        """
        signature = self.program.graph_signature
        results = [
            argument
            for argument, spec in zip(node.args[0], signature.output_specs, strict=True)
            if spec.kind.name == "USER_OUTPUT" and hasattr(argument, "name")
        ]
        changed = set(signature.buffers_to_mutate.values())
        buffers = {name: buffer for name, buffer in signature.inputs_to_buffers.items() if buffer in changed}
        waiting, seen = list(results), set[Any]()
        while waiting and buffers:
            current = waiting.pop()
            if current.name in buffers:
                raise UsageError(
                    f"the module reads its buffer {buffers[current.name]!r} and changes it in each call, which a pack "
                    "does not keep; make it an input and return what it becomes"
                )
            whole = _name_of(current.target) == "copy.default"  # what the first one was is gone
            read = current.args[1:2] if whole else current.all_input_nodes
            waiting += [item for item in read if item not in seen]
            seen.update(read)
        return results

    def _real(self, name: str) -> str:
        if isinstance(self.values[name], Complex):
            raise UsageError(f"output {name}: complex numbers; return torch.view_as_real of it")
        return str(self.values[name])

    def _placeholder(self, node: Any, spec: Any) -> Any:
        value = node.meta["val"]
        if spec.kind.name == "USER_INPUT":
            if not hasattr(value, "shape"):
                raise UsageError(f"input {node.name}: a number, not a tensor; fix it before exporting")
            if value.is_complex():
                raise UsageError(f"input {node.name}: complex numbers; take real ones and call torch.view_as_complex")
            return self.g.input(node.name, [self.extent(extent) for extent in value.shape], self._dtype(value))
        stored = self.program.state_dict.get(spec.target)
        if stored is None:
            stored = self.program.constants[spec.target]
        result = _array(stored.detach().resolve_conj().resolve_neg().cpu())
        if value.is_complex():
            return Complex(*(self.g.constant(np.asarray(part, order="C")) for part in (result.real, result.imag)))
        return self.g.constant(np.asarray(result, order="C"), name=node.name)

    def _dtype(self, value: Any) -> str:
        name = str(value.dtype).removeprefix("torch.")
        return _DTYPES.get(name, name)

    def extent(self, size: Any) -> Extent:
        """A size of torch as an extent of the graph."""
        return size if isinstance(size, int) else self._expression(size.node.expr)

    def _expression(self, e: Any) -> Extent:
        if e.is_Integer:
            return int(e)
        if e.is_Rational or e.is_Float:
            return exact(float(e)) if e.is_Float else sympy.Rational(e)
        if e.is_Symbol and str(e) in self.of_data:
            return self.of_data[str(e)]
        if e.is_Symbol:
            name = re.sub(r"\W", "_", self.names.get(str(e), str(e)))
            return self.sizes[name] if name in self.sizes else dimension(name)
        parts = [self._expression(argument) for argument in e.args]
        kind = type(e).__name__
        if kind == "Identity":
            return parts[0]
        if kind in ("FloorDiv", "CleanDiv"):
            return floor_division(*parts)
        if e.is_integer is not True or kind in _ROUNDED:
            return self._real_number(kind, e, parts)
        if kind == "ceiling":
            return ceiling_division(parts[0], 1)
        if kind == "floor":
            return floor_division(parts[0], 1)
        if kind in ("Mod", "PythonMod"):
            return canonical(parts[0] - parts[1] * floor_division(*parts))
        if kind == "ModularIndexing":
            base = floor_division(parts[0], parts[1])
            return canonical(base - parts[2] * floor_division(base, parts[2]))
        if kind in ("PowByNatural", "FloatPow"):
            return canonical(sympy.Pow(*parts))
        if kind in ("Max", "Min"):
            return (largest if kind == "Max" else smallest)(parts)
        if kind in ("Add", "Mul", "Pow"):
            return canonical(e.func(*parts))
        raise UsageError(f"size {e}: {kind} has no arithmetic here")

    def _real_number(self, kind: str, e: Any, parts: Sequence[Any]) -> Any:
        """A real number of Python's, or a whole one that is made of such: each step is rounded to a double."""
        proof = Proof(self.g.ranges)
        try:
            if kind in _ROUNDED:
                function = _ROUNDED[kind]
                whole = mapped(function, parts, "fp64", proof) if function else parts[0]
                result = cast(whole, "fp64", "int64", proof)
            elif kind == "ToFloat":
                result = cast(parts[0], "int64", "fp64", proof)
            elif kind == "Pow" and parts[1] == -1:
                result = mapped("div", (1, parts[0]), "fp64", proof)
            elif kind in ("Pow", "FloatPow") and parts[1] == _HALF:
                result = mapped("sqrt", (parts[0],), "fp64", proof)
            elif kind in _OF_REALS:
                result = reduce(lambda item, other: mapped(_OF_REALS[kind], (item, other), "fp64", proof), parts)
            else:
                raise DataDependentError
        except DataDependentError as error:
            raise UsageError(f"size {e}: {kind} has no arithmetic here") from error
        self.g.require(proof)
        return result

    def _argument(self, value: Any) -> Any:
        if hasattr(value, "op") and hasattr(value, "name"):
            return self.values[value.name]
        if isinstance(value, (list, tuple)):
            return [self._argument(item) for item in value]
        return value

    def _called(self, node: Any) -> Any:
        name, value = _name_of(node.target), node.meta.get("val")
        if name.split(".")[0] in _NOTHING:
            return None
        if name == "_local_scalar_dense.default":
            return self._number(self.values[node.args[0].name], value)
        if hasattr(value, "node"):  # arithmetic of sizes, whatever it is; a comparison of them is only ever asserted
            return None if getattr(value.node.expr, "is_Relational", False) else self.extent(value)
        if isinstance(value, (bool, int, float)) and not str(node.target).startswith("aten."):
            return value
        arguments = [self._argument(argument) for argument in node.args]
        if getattr(node.target, "__name__", "") == "getitem":
            whole, position = arguments
            if position >= len(whole):
                raise UsageError(f"result {position} of {node.args[0].name} has no rule")
            return whole[position]
        if name not in ATEN and name not in COMPLEX:
            raise UsageError(f"{node.target} has no rule")
        if name == "as_strided.default":
            arguments = self._as_it_lies(node.args[0].meta["val"], *arguments)
        first = value[0] if isinstance(value, (list, tuple)) else value
        named = {key: self._argument(value) for key, value in node.kwargs.items()}
        a = AtenContext(self.g, name, arguments, named, self._dtype(first), tuple(getattr(first, "shape", ())))
        result = called(a, ATEN) if name in COMPLEX_ALONE or has_complex(arguments) else ATEN[name](a)
        if isinstance(result, str) and hasattr(first, "is_complex") and first.is_complex():
            result = Complex(result, self.g.add("broadcast", a.cast(0, a.dtype), shape=self.g.types[result].shape))
        self._bind(value, result)
        return result

    def _as_it_lies(self, source: Any, tensor: str, sizes: Any, strides: Any, offset: Any = None) -> list[Any]:
        """Arguments of a view by strides, of the tensor with its axes as they lie in memory: strides count through that.

        ``source``: the tensor as torch has it. UsageError where it does not fill its memory, or the view begins elsewhere.
        """
        own, steps = [self.extent(size) for size in source.shape], [self.extent(step) for step in source.stride()]
        behind, order, left = 1, list[int](), list(range(len(own)))
        while left:
            axis = next((axis for axis in reversed(left) if same(own[axis], 1) or same(steps[axis], behind)), None)
            if axis is None:
                raise UsageError(f"as_strided: of a view of sizes {own} and strides {steps}, which has no rule")
            left.remove(axis)
            order, behind = [axis, *order], canonical(behind * own[axis])
        first = self.extent(source.storage_offset())
        if offset is not None and not same(offset, first):
            raise UsageError(f"as_strided: begins at element {offset} of a tensor that begins at {first}; it has no rule")
        if order != sorted(order):
            tensor = self.g.add("transpose", tensor, order=tuple(order))
        return [tensor, sizes, strides]

    def _number(self, tensor: str, value: Any) -> Any:
        """A number of the data as a size."""
        (result,) = self.g.whole_numbers(tensor, "item()")
        if hasattr(value, "node") and value.node.expr.is_Symbol:
            self.of_data[str(value.node.expr)] = result
        return result

    def _bind(self, value: Any, result: Any) -> None:
        """Sizes that torch knows only from the data: each is that of the tensor that is made here."""
        whole = isinstance(value, (list, tuple))
        for item, tensor in zip(value if whole else [value], result if whole else [result], strict=False):
            tensor = tensor.real if isinstance(tensor, Complex) else tensor
            for size, extent in zip(getattr(item, "shape", ()), self.g.types[tensor].shape, strict=False):
                symbol = getattr(getattr(size, "node", None), "expr", None)
                if getattr(symbol, "is_Symbol", False) and str(symbol).startswith(("u", "zuf")):
                    self.of_data.setdefault(str(symbol), extent)
