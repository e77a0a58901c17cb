"""A machine that writes a generated program as CUDA C++: the lanes of its vectors are threads, a *group* of them.

A group is a warp, a part of one (short rows) or a block (long rows). Every group takes points of the outermost loops that
write; what is one number for all lanes every lane computes, and the first one stores. Folds over lanes are joined by
shuffles and, in a block, through its memory, in a fixed order. The unit includes nothing: nvcc and NVRTC take it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from haotuner.errors import UsageError
from haotuner.generate.emit import emit
from haotuner.generate.schedule import Plan
from haotuner.graph.extents import Extent, lowered
from haotuner.microkernels.cuda.generated_loops import Loop, plain, spread
from haotuner.microkernels.cuda.pieces import DEVICE

WARP = 32
WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)  # lanes of a vector: part of a warp, a warp, or a block
ELEMENTS = {"fp32": "float", "fp16": "ht_half", "bf16": "ht_bf16"}  # in memory
TYPES = {"fp32": "float", "fp64": "double", "int64": "long long", "int32": "int", "bool": "bool"}
ARGUMENTS = Path(__file__).parents[2] / "runtime" / "native" / "cuda" / "ht_cuda_generated.h"
FUNCTIONS = DEVICE / "generated.cuh"
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "equal": "==", "less": "<", "less_equal": "<=", "greater": ">",
         "greater_equal": ">=", "and": "&&", "or": "||", "xor": "!="}  # fmt: skip
CALLS = {
    "max": "ht_max({0}, {1})",
    "min": "ht_min({0}, {1})",
    "floordiv": "ht_floordiv({0}, {1})",
    "mod": "ht_mod({0}, {1})",
    "select": "({0} ? {1} : {2})",
    "neg": "(-{0})",
    "not": "(!{0})",
    "isnan": "({0} != {0})",
    "sign": "ht_sign({0})",
    "reciprocal": "(1.0f / {0})",
}
FLOATS = {"exp": "expf({0})", "log": "logf({0})", "tanh": "tanhf({0})", "erf": "erff({0})", "sqrt": "sqrtf({0})",
          "rsqrt": "(1.0f / sqrtf({0}))", "sigmoid": "(1.0f / (1.0f + expf(-{0})))", "pow": "powf({0}, {1})",
          "abs": "fabsf({0})", "floor": "floorf({0})", "ceil": "ceilf({0})", "round": "rintf({0})", "sin": "sinf({0})",
          "cos": "cosf({0})", "fmod": "fmodf({0}, {1})",
          "isinf": "(fabsf({0}) == __uint_as_float(0x7f800000u))"}  # fmt: skip
JOINS = {"sum": "add", "prod": "mul"}


class Code(str):
    """An expression of C; sums and products of extents are said with Python's operators."""

    __slots__ = ()

    def __add__(self, other: str) -> Code:
        return Code(f"({self} + {other})")

    def __sub__(self, other: str) -> Code:
        return Code(f"({self} - {other})")

    def __mul__(self, other: object) -> Code:
        return Code(f"({self} * {other})")


class Neighbour(Code):
    """The base of one vector of an iteration: its place among them, and what they have in common."""

    first: Code
    place: int
    vectors: int
    pitch: int
    limit: Code | None

    @staticmethod
    def of(base: Code, first: Code, place: int, count: int, pitch: int, limit: Code | None) -> Neighbour:
        """Vector ``place`` of an iteration of ``count``, begun at ``first``; see ``Machine.together``."""
        one = Neighbour(base)
        one.first, one.place, one.vectors, one.pitch, one.limit = first, place, count, pitch, limit
        return one

    def moved(self, lanes: int) -> str:
        """What ``ht_take`` and ``ht_put`` of device/generated.cuh are told behind the tensor and the registers."""
        return f"{self.first} + ht_lane * {self.pitch}, {lanes * self.pitch}, {self.limit if self.limit is not None else 0}"

    @property
    def form(self) -> str:
        """Their template arguments."""
        return f"<{self.pitch}, {str(self.limit is not None).lower()}>"


@dataclass(frozen=True, slots=True)
class _Cell:
    machine: CudaText
    name: Code
    depth: int  # loops around it

    def get(self) -> Code:
        """Its name."""
        return self.name

    def set(self, value: Code) -> None:
        """An assignment."""
        self.machine.assign(self, value)


class CudaText:
    """Values are expressions; each step is a statement of its own, so nothing is said twice."""

    def __init__(self, plan: Plan, kept_as: str = "fp32") -> None:
        self.kept_as = ELEMENTS[kept_as]  # the type of floats in memory; they are computed in fp32
        self.plan, self._names, self._lanes = plan, 0, plan.schedule.lanes
        self._loops = [Loop(Code(""), Code("1"))]
        self._puts: dict[tuple[str, ...], list[Code]] = {}  # values of an iteration's vectors, until the last one comes
        self.tensors = (*plan.graph.inputs, plan.output)
        self.sizes = {name: Code(f"a.sizes[{place}]") for place, name in enumerate(plan.graph.dimensions)}

    @property
    def lines(self) -> list[str]:
        """The program's statements."""
        return plain(self._loops[0].items)

    def _say(self, line: str) -> None:
        self._loops[-1].items.append(line)

    def _named(self, dtype: str, value: str, *, fixed: bool = True) -> Code:
        self._names += 1
        name = Code(f"v{self._names}")
        self._say(f"{'const ' * fixed}{TYPES[dtype]} {name} = {value};")
        return name

    def number(self, value: float, dtype: str) -> Code:
        """A constant."""
        if dtype == "bool":
            return Code(str(bool(value)).lower())
        if dtype not in ("fp32", "fp64"):
            return Code(f"{int(value)}" + "ll" * (dtype == "int64"))
        if np.isnan(value) or np.isinf(value):
            bits = int(np.float32(value).view(np.uint32))
            return Code(f"__uint_as_float(0x{bits:08x}u)")
        short = np.format_float_scientific(np.float32(value) if dtype == "fp32" else np.float64(value), trim="0")
        return Code(f"({short}{'f' * (dtype == 'fp32')})")

    def size(self, extent: Extent) -> Code:
        """An extent of the request."""
        if isinstance(extent, int):
            return self.number(extent, "int64")

        def called(function: str) -> Callable[[Code, Code], Code]:
            return lambda one, other: Code(f"{function}({one}, {other})")

        found: Code = lowered(extent, self.sizes, number=lambda value: self.number(value, "int64"),
                              floordiv=called("ht_floordiv"), mod=called("ht_mod"), maximum=called("ht_max<long long>"),
                              minimum=called("ht_min<long long>"))  # fmt: skip
        return found

    def loop(self, count: Code, body: Callable[[Code], None]) -> None:
        """A loop; the outermost one that writes and carries nothing is shared by all warps."""
        self._names += 1
        i = Code(f"i{self._names}")
        self._loops.append(Loop(i, count))
        body(i)
        inner = self._loops.pop()
        outermost = len(self._loops) == 1
        shared = outermost and inner.stores and not inner.carries
        if outermost and inner.stores and not shared:
            raise UsageError("a program that keeps a tensor outside of rows is one warp's; keep nothing")
        if shared:
            for line in spread(inner, "ht_group", "ht_groups", apart=not self.plan.keeps):
                self._say(line)
        else:
            self._loops[-1].items.append(inner)
        if inner.stores and not shared and self.plan.keeps:
            self._say(self._meeting())  # other lanes may read what was kept
        self._loops[-1].stores |= inner.stores

    def _meeting(self) -> str:
        return "__syncthreads();" if self._lanes > WARP else "__syncwarp(ht_mask);"

    def assign(self, cell: _Cell, value: Code) -> None:
        """A cell's new value; loops between its declaration and here carry it."""
        self._say(f"{cell.name} = {value};")
        self._loops[-1].ordered = True
        for loop in self._loops[cell.depth :]:
            loop.carries = True

    def ramp(self, base: Code, lanes: int, pitch: int = 1) -> Code:
        """Each lane's number."""
        return Code(f"({base} + ht_lane * {pitch})" if pitch > 1 else f"({base} + ht_lane)") if lanes > 1 else base

    def mask(self, base: Code, extent: Code, lanes: int, pitch: int = 1) -> Code:
        """Whether this lane exists."""
        return self._named("bool", f"{self.ramp(base, lanes, pitch)} < {extent}")

    def together(self, first: Code, bases: Sequence[Code], pitch: int, limit: Code | None) -> Sequence[Code]:
        """The bases, marked: all that one of them loads or stores is moved at once."""
        if self._lanes == 1 or not self.plan.schedule.loads_first:
            return bases
        return [Neighbour.of(base, first, place, len(bases), pitch, limit) for place, base in enumerate(bases)]

    def load(self, tensor: str, indices: Sequence[Code], steps: Sequence[int] | None, lanes: int, mask: Code | None) -> Code:
        """An element a lane; of an iteration's vectors all at once, which no pass of the same scope repeats."""
        dtype = self.plan.graph.types[tensor].dtype
        if (at := _neighbour(indices, steps, lanes)) is not None:
            return Code(f"{self._taken(tensor, indices[:-1], at, dtype)}[{at.place}]")
        place = self._place(tensor, indices, steps if lanes > 1 else None)
        if self.element(tensor) != TYPES[dtype]:
            place = f"float({place})"
        guarded = f"{mask} ? {place} : {TYPES[dtype]}(0)" if mask is not None and lanes > 1 else place
        return self._named(dtype, guarded)

    def store(
        self, tensor: str, indices: Sequence[Code], steps: Sequence[int], value: Code, lanes: int, mask: Code | None
    ) -> None:
        """Every lane its own element; the first lane what is one for all."""
        if (at := _neighbour(indices, steps, lanes)) is not None:
            self._put(tensor, indices[:-1], at, value)
            return
        wide = lanes > 1 and any(steps)
        condition = mask if wide else "ht_lane == 0"
        place = self._place(tensor, indices, steps if wide else None)
        if self.element(tensor) != TYPES[self.plan.graph.types[tensor].dtype]:
            value = Code(f"{self.kept_as}({value})")
        self._say(f"if ({condition}) {place} = {value};" if condition is not None else f"{place} = {value};")
        self._loops[-1].ordered = True
        for loop in self._loops:
            loop.stores = True

    def _taken(self, tensor: str, outer: Sequence[Code], at: Neighbour, dtype: str) -> str:
        """Registers with what an iteration's vectors load."""
        key = (tensor, *outer, at.first, at.form, str(at.vectors))
        for loop in self._loops:
            if key in loop.known:
                return loop.known[key]
        self._names += 1
        name = f"w{self._names}"
        self._say(f"{TYPES[dtype]} {name}[{at.vectors}];")
        self._say(f"ht_take{at.form}({name}, {self._row(tensor, outer)}, {at.moved(self._lanes)});")
        self._loops[-1].known[key] = name
        return name

    def _put(self, tensor: str, outer: Sequence[Code], at: Neighbour, value: Code) -> None:
        key = (tensor, *outer, at.first)
        values = self._puts.setdefault(key, [])
        values.append(value)
        if len(values) < at.vectors:
            return
        self._names += 1
        name, dtype = f"w{self._names}", TYPES[self.plan.graph.types[tensor].dtype]
        self._say(f"const {dtype} {name}[{at.vectors}] = {{{', '.join(self._puts.pop(key))}}};")
        self._say(f"ht_put{at.form}({self._row(tensor, outer)}, {name}, {at.moved(self._lanes)});")
        self._loops[-1].ordered = True
        for loop in self._loops:
            loop.stores = True

    def _row(self, tensor: str, outer: Sequence[Code]) -> str:
        """Where a tensor's elements along its last axis begin."""
        at = self.tensors.index(tensor)
        return " + ".join([f"t{at}", *(f"{one} * a.strides[{at}][{axis}]" for axis, one in enumerate(outer))])

    def element(self, tensor: str) -> str:
        """The type of a tensor's elements in memory."""
        dtype = self.plan.graph.types[tensor].dtype
        return self.kept_as if dtype == "fp32" else TYPES[dtype]

    def _place(self, tensor: str, indices: Sequence[Code], steps: Sequence[int] | None) -> str:
        at, parts = self.tensors.index(tensor), []
        for axis, one in enumerate(indices):
            step = steps[axis] if steps is not None else 0
            own = f"({one} + {step}ll * ht_lane)" if step else str(one)
            parts.append(own if axis == len(indices) - 1 else f"{own} * a.strides[{at}][{axis}]")
        return f"t{at}[{' + '.join(parts) or '0'}]"

    def apply(self, function: str, arguments: Sequence[Code], dtype: str, lanes: int) -> Code:
        """One step. UsageError for a function that has no words in C."""
        return self._named(dtype, self._said(function, arguments, dtype))

    def _said(self, function: str, arguments: Sequence[str], dtype: str) -> str:
        if function == "cast":
            return f"({TYPES[dtype]})({arguments[0]})"
        if function in INFIX:
            return f"{arguments[0]} {INFIX[function]} {arguments[1]}"
        if function in ("floordiv", "mod") and dtype.startswith("fp"):
            raise UsageError(f"no program for the function {function!r} of {dtype}")
        if function in ("max", "min") or function in CALLS:
            typed = CALLS[function].replace("(", f"<{TYPES[dtype]}>(", 1) if function in ("max", "min") else CALLS[function]
            return typed.format(*arguments)
        if function in FLOATS and (dtype == "fp32" or function == "isinf"):
            return FLOATS[function].format(*arguments)
        if function == "abs":
            return f"({arguments[0]} < 0 ? -{arguments[0]} : {arguments[0]})"
        raise UsageError(f"no program for the function {function!r} of {dtype}")

    def cell(self, dtype: str, lanes: int, start: Code) -> _Cell:
        """A variable."""
        return _Cell(self, self._named(dtype, start, fixed=False), len(self._loops))

    def join(self, how: str, one: Code, other: Code, dtype: str, lanes: int) -> Code:
        """Two partial results."""
        return self.apply(JOINS.get(how, how), [one, other], dtype, lanes)

    def fma(self, one: Code, other: Code, more: Code, dtype: str, lanes: int) -> Code:
        """A product and a sum, rounded once."""
        return self._named(dtype, f"fmaf({one}, {other}, {more})" if dtype == "fp32" else f"{one} * {other} + {more}")

    def scratch(self, name: str, count: int, dtype: str) -> None:
        """None: memory near a GPU's core is shared by a block, and whose part it is the program does not say."""
        raise UsageError(f"a program with memory of its own ({name}) has no form on a GPU yet")

    def neutral(self, how: str, dtype: str) -> Code:
        """What changes nothing."""
        if how in ("sum", "prod"):
            return self.number(how == "prod", dtype)
        if dtype.startswith("fp"):
            return self.number(-np.inf if how == "max" else np.inf, dtype)
        limits = np.iinfo(np.int32 if dtype == "int32" else np.int64)
        return Code(f"(-{limits.max}{'ll' * (dtype == 'int64')} - 1)") if how == "max" else self.number(limits.max, dtype)

    def horizontal(self, how: str, value: Code, dtype: str, lanes: int) -> Code:
        """All lanes' values joined, in all lanes: halves exchange theirs until one is left."""
        if lanes == 1:
            return value
        found = self._named(dtype, value, fixed=False)
        how, width = JOINS.get(how, how), min(lanes, WARP)
        joined = self._said(how, [found, f"__shfl_xor_sync(ht_mask, {found}, ht_step)"], dtype)
        self._say(f"for (int ht_step = {width // 2}; ht_step > 0; ht_step /= 2) {found} = {joined};")
        if lanes > WARP:  # each warp's part through memory of the block, in the order of warps
            parts = f"ht_part{found}"
            self._say(f"__shared__ {TYPES[dtype]} {parts}[{lanes // WARP}];")
            self._say(f"if (threadIdx.x % {WARP} == 0) {parts}[threadIdx.x / {WARP}] = {found};")
            self._say("__syncthreads();")
            self._say(f"{found} = {parts}[0];")
            other = self._said(how, [found, f"{parts}[ht_at]"], dtype)
            self._say(f"for (int ht_at = 1; ht_at < {lanes // WARP}; ++ht_at) {found} = {other};")
            self._say("__syncthreads();")
        return found


def _neighbour(indices: Sequence[Code], steps: Sequence[int] | None, lanes: int) -> Neighbour | None:
    """The base of a vector whose lanes lie along a tensor's last axis, just as an iteration's do."""
    last = indices[-1] if indices else None
    if lanes == 1 or steps is None or not isinstance(last, Neighbour):
        return None
    return last if steps[-1] == last.pitch and not any(steps[:-1]) else None


def cuda_unit(plans: Mapping[str, Plan], threads: int = 256) -> str:
    """CUDA C++ of programs by symbol, each ``extern "C" __global__ void SYMBOL(ht_generated_args)``, of any grid.

    Blocks are of any whole number of warps up to ``threads``; of as many threads as a vector has lanes where it has more
    than a warp. UsageError for vectors of other widths, or for a step that has no words in C.
    """
    return "\n".join([shared_text(), *(kernel_text(symbol, plan, threads) for symbol, plan in plans.items())])


def shared_text() -> str:
    """What every unit of such programs begins with."""
    return ARGUMENTS.read_text() + FUNCTIONS.read_text()


def kernel_text(symbol: str, plan: Plan, threads: int = 256, kept_as: str = "fp32") -> str:
    """One kernel, on floats that memory keeps as ``kept_as``, of device/prelude.cuh; UsageError as of ``cuda_unit``."""
    if plan.keeps and kept_as != "fp32":
        raise UsageError(f"{symbol}: a tensor kept in the output's rows would be rounded to {kept_as}")
    if plan.keeps and plan.schedule.held:
        raise UsageError(f"{symbol}: rows whose loads stay in registers keep no tensor beside")
    lanes = plan.schedule.lanes
    if lanes not in WIDTHS:
        raise UsageError(f"{symbol}: vectors of {lanes}; on a GPU they are {', '.join(map(str, WIDTHS))} threads")
    machine = CudaText(plan, kept_as)
    emit(plan, machine)
    tensors = []
    for place, name in enumerate(machine.tensors):
        const = "const " if name != plan.output else ""
        dtype = machine.element(name)
        tensors.append(f"{const}{dtype}* __restrict__ const t{place} = ({const}{dtype}*)a.data[{place}];")
    whole = f"((1u << {lanes}) - 1u) << (threadIdx.x % {WARP} / {lanes} * {lanes})" if lanes < WARP else "0xffffffffu"
    body = [
        f"const int ht_lane = threadIdx.x % {lanes};",
        f"const unsigned ht_mask = {whole};",
        f"const long long ht_group = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / {lanes};",
        f"const long long ht_groups = (long long)gridDim.x * blockDim.x / {lanes};",
        *tensors,
        *machine.lines,
    ]
    text = "\n".join(f"  {line}" for line in body)
    limit = max(threads, lanes) if lanes <= WARP else lanes
    return f'extern "C" __global__ void __launch_bounds__({limit}) {symbol}(const ht_generated_args a) {{\n{text}\n}}\n'
