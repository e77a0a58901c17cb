"""A machine that writes a generated program as CUDA C++: the lanes of its vectors are threads, a *group* of them.

A group is a warp, a part of one (short rows) or a block (long rows). Every group takes points of the outermost loops that
write; what is one number for all lanes every lane computes, and the first one stores. Folds over lanes are joined by
shuffles and, in a block, through its memory, in a fixed order. ``generated_kernel.py`` makes kernels of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from haotuner.codegen.emit import AnyPlan
from haotuner.codegen.expressions import INDEX
from haotuner.codegen.schedule import Plan, merges
from haotuner.codegen.sibling_outputs import written
from haotuner.codegen.split_reduction import PARTIAL
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, lowered
from haotuner.microkernels.cuda.generated_text import (
    JOINS,
    PART,
    TYPES,
    Code,
    Loop,
    Neighbour,
    apart,
    function_call,
    neighbour,
    plain,
    spread,
)

WARP = 32
FLAT = 2  # of a kernel's ways: lanes side by side, lanes with neighbours of their own, and those in one long row
ELEMENTS = {"fp32": "float", "fp16": "ht_half", "bf16": "ht_bf16"}  # in memory


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
    """Builder of CUDA C++: values are expressions; each step is a statement of its own, so none is there twice."""

    predicates = False

    def __init__(self, plan: AnyPlan, kept_as: str = "fp32", *, in_parts: bool = False) -> None:
        self._in_parts = in_parts
        self.stored_as = ELEMENTS[kept_as]  # the type of floats in memory; they are computed in fp32
        self.plan, self._names, self._lanes = plan, 0, plan.schedule.lanes
        self._loops = [Loop(Code(""), Code("1"))]
        self._keeps = bool(plan.keeps) if isinstance(plan, Plan) else False
        self._loads_first = isinstance(plan, Plan) and plan.schedule.loads_first
        self._scratch: dict[str, tuple[Code, int]] = {}  # a group's own memory: names of pointers, and where each begins
        self.scratch_floats = 0  # of a group
        self._puts: dict[tuple[str, ...], list[Code]] = {}  # values of an iteration's vectors, until the last one comes
        self._pack = plan.schedule.packed if isinstance(plan, Plan) else 1  # neighbours that a lane moves at once
        self._packed: set[str] = set()  # tensors of which it does
        self._fixed: set[Code] = set()  # cells whose declarations say that they do not change
        self.tensors = (*plan.graph.inputs, *written(plan.graph))
        self.sizes = {name: Code(f"a.sizes[{index}]") for index, name in enumerate(plan.graph.dimensions)}

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
            return lambda item, other: Code(f"{function}({item}, {other})")

        result: Code = lowered(extent, self.sizes, number=lambda value: self.number(value, "int64"),
                              floordiv=called("ht_floordiv"), mod=called("ht_mod"), maximum=called("ht_max<long long>"),
                              minimum=called("ht_min<long long>"))  # fmt: skip
        return result

    def request_extent(self, extent: Extent) -> str:
        """An extent of the whole request, where ``a`` holds a part of it."""
        return self.size(extent).replace("a.sizes", "given.sizes")

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
            for line in spread(inner, "ht_group", "ht_groups", apart=not self._keeps):
                self._say(line)
        else:
            self._loops[-1].items.append(inner)
        if inner.stores and not shared and self._keeps:
            self._say(self._meeting())  # other lanes may read what was kept
        self._loops[-1].stores |= inner.stores

    def _meeting(self) -> str:
        return "__syncthreads();" if self._lanes > WARP else "__syncwarp(ht_mask);"

    def assign(self, cell: _Cell, value: Code) -> None:
        """A cell's new value; loops between its declaration and here carry it."""
        if cell.name in self._fixed:  # numbers are said to be fixed until they are not
            self._fixed.remove(cell.name)
            said_as = f"const {TYPES[INDEX]} {cell.name} ="
            items = self._loops[cell.depth - 1].items
            position = next(i for i, item in enumerate(items) if isinstance(item, str) and item.startswith(said_as))
            items[position] = str(items[position]).removeprefix("const ")
        self._say(f"{cell.name} = {value};")
        self._loops[-1].ordered = True
        for loop in self._loops[cell.depth :]:
            loop.carries = True

    def ramp(self, base: Code, lanes: int, pitch: int = 1) -> Code:
        """Each lane's number."""
        return Code(f"({base} + {self._lane(pitch)})") if lanes > 1 else base

    def _lane(self, step: int) -> str:
        """Distance of a lane from the first one, of packs of neighbours where memory lets a lane move them at once."""
        packs = self._pack > 1 and step % self._pack == 0
        name, times = ("ht_own", step // self._pack) if packs else ("ht_lane", step)
        return name if times == 1 else f"{times}ll * {name}"

    def mask(self, base: Code, extent: Code, lanes: int, pitch: int = 1) -> Code:
        """True if this lane exists, as an expression."""
        if isinstance(base, Neighbour) and base.limit == extent:
            return self._named("bool", f"{self._lane(base.pitch)} + {apart(base.position, lanes, base.pitch)} < {base.room}")
        return self._named("bool", f"{self.ramp(base, lanes, pitch)} < {extent}")

    def together(self, first: Code, bases: Sequence[Code], pitch: int, limit: Code | None) -> Sequence[Code]:
        """The bases, marked: all that one of them loads or stores is moved at once."""
        if self._lanes == 1 or not self._loads_first:
            return bases
        room = None if limit is None else self._named("int32", f"ht_room({limit} - {first})")
        result = []
        for index, base in enumerate(bases):
            if index % pitch:
                base = self._named(INDEX, f"{first} + {apart(index, self._lanes, pitch)}")
            result.append(Neighbour.of(base, first, index, len(bases), pitch, room, limit))
        return result

    def even(self) -> str:
        """Condition that what lanes move at once lies as it must, in all tensors; empty where they move single elements."""
        if self._pack == 1:
            return ""
        requested = []
        for at, name in enumerate(self.tensors):
            if name not in self._packed:
                continue
            size = "sizeof(float)" if self._in_parts else f"sizeof({self.element(name)})"
            requested.append(f"(unsigned long long)a.data[{at}] % ({self._pack} * {size}) == 0")
            for axis, extent in enumerate(self.plan.graph.types[name].shape[:-1]):
                if extent != 1:
                    requested.append(f"({self.size(extent)} == 1 || a.strides[{at}][{axis}] % {self._pack} == 0)")
        return " && ".join(requested) or "true"

    def flat(self) -> str:
        """Condition that all axes are taken as one: no row but the first is looked for; empty where that is never so."""
        if self._pack == 1 or not isinstance(self.plan, Plan) or not merges(self.plan):
            return ""
        *outer, _ = (self.size(extent) for extent in self.plan.graph.types[self.plan.output].shape)
        return " && ".join(f"{size} == 1" for size in outer if size.startswith("a."))

    def lane_offsets(self, ways: int) -> list[str]:
        """Start of a lane, and how far what it takes at a time lies apart, in each of so many ways of a kernel."""
        if ways == 1:
            return ["constexpr bool ht_flat = false;"]
        return [
            f"constexpr bool ht_even = ht_way > 0, ht_flat = ht_way == {FLAT};",
            f"const int ht_own = ht_even ? ht_lane * {self._pack} : ht_lane;",
            f"constexpr int ht_apart = ht_even ? 1 : {self._lanes};",
        ]

    def load(
        self,
        tensor: str,
        indices: Sequence[Code],
        steps: Sequence[int] | None,
        lanes: int,
        mask: Code | None,
        symbolic: Sequence[Code] = (),
    ) -> Code:
        """An element a lane; of an iteration's vectors all at once, which no pass of the same scope repeats."""
        if tensor == PARTIAL:
            return self._named("fp32", f"a.partial[{indices[0]}{' + ht_lane' * (lanes > 1)}]")
        if tensor in self._scratch:
            return self._named("fp32", self._lane_address(tensor, indices[0], lanes))
        dtype = self.plan.graph.types[tensor].dtype
        if not symbolic and (at := neighbour(indices, steps, lanes)) is not None:
            return Code(f"{self._loaded(tensor, indices[:-1], at, dtype)}[{at.position}]")
        position = self._address(tensor, indices, steps if lanes > 1 else None)
        if self.element(tensor) != TYPES[dtype]:
            position = f"float({position})"
        conditions = [f"{item} > 0" for item in symbolic] + ([str(mask)] if mask is not None and lanes > 1 else [])
        return self._named(dtype, f"{' && '.join(conditions)} ? {position} : {TYPES[dtype]}(0)" if conditions else position)

    def store(
        self, tensor: str, indices: Sequence[Code], steps: Sequence[int], value: Code, lanes: int, mask: Code | None
    ) -> None:
        """Every lane its own element; the first lane what is one for all."""
        if tensor == PARTIAL:
            self._store(
                f"a.partial[{indices[0]}{' + ht_lane' * (lanes > 1)}] = {value};", None if lanes > 1 else "ht_lane == 0"
            )
            return
        if tensor in self._scratch:
            self._keep(self._lane_address(tensor, indices[0], lanes), value, lanes)
            return
        if (at := neighbour(indices, steps, lanes)) is not None:
            self._put(tensor, indices[:-1], at, value)
            return
        wide = lanes > 1 and any(steps)
        condition = mask if wide else "ht_lane == 0"
        position = self._address(tensor, indices, steps if wide else None)
        text = f"{position} = {value};"
        if self.element(tensor) != TYPES[self.plan.graph.types[tensor].dtype]:
            text = f"{position} = {self.stored_as}({value});"
            if self._in_parts:  # results of a part are not rounded
                text = f"{{ if (given.phase == {PART}) ht_{position} = {value}; else {text} }}"
        self._store(text, condition)

    def _store(self, text: str, condition: str | None) -> None:
        self._say(f"if ({condition}) {text}" if condition is not None else text)
        self._loops[-1].ordered = True
        for loop in self._loops:
            loop.stores = True

    def _loaded(self, tensor: str, outer: Sequence[Code], at: Neighbour, dtype: str) -> str:
        """Registers with what an iteration's vectors load."""
        key = (tensor, *outer, at.first, at.form, str(at.vectors))
        for loop in self._loops:
            if key in loop.known:
                return loop.known[key]
        self._names += 1
        name = f"w{self._names}"
        self._packed |= {tensor} if at.pitch > 1 else set()
        self._say(f"{TYPES[dtype]} {name}[{at.vectors}];")
        self._say(f"ht_take{at.form}({name}, {self._row(tensor, outer)} + {at.first}, {at.moved(self._lanes)});")
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
        self._packed |= {tensor} if at.pitch > 1 else set()
        text = f"ht_put{at.form}({self._row(tensor, outer)} + {at.first}, {name}, {at.moved(self._lanes)});"
        if self._in_parts and self.element(tensor) != TYPES[self.plan.graph.types[tensor].dtype]:
            text = f"if (given.phase == {PART}) {text.replace('(t', '(ht_t', 1)} else {text}"
        self._say(text)
        self._loops[-1].ordered = True
        for loop in self._loops:
            loop.stores = True

    def _row(self, tensor: str, outer: Sequence[Code]) -> str:
        """Address where a tensor's elements along its last axis begin."""
        at = self.tensors.index(tensor)
        return " + ".join([f"t{at}", *(f"{item} * a.strides[{at}][{axis}]" for axis, item in enumerate(outer))])

    def element(self, tensor: str) -> str:
        """The type of a tensor's elements in memory."""
        dtype = self.plan.graph.types[tensor].dtype
        return self.stored_as if dtype == "fp32" else TYPES[dtype]

    def _address(self, tensor: str, indices: Sequence[Code], steps: Sequence[int] | None) -> str:
        at, parts = self.tensors.index(tensor), []
        for axis, index in enumerate(indices):
            step = steps[axis] if steps is not None else 0
            own = f"({index} + {self._lane(step)})" if step else str(index)
            parts.append(own if axis == len(indices) - 1 else f"{own} * a.strides[{at}][{axis}]")
        return f"t{at}[{' + '.join(parts) or '0'}]"

    def apply(self, function: str, arguments: Sequence[Code], dtype: str, lanes: int) -> Code:
        """One step. UsageError for a function that has no words in C."""
        return self._named(dtype, function_call(function, arguments, dtype, short=self.stored_as != ELEMENTS["fp32"]))

    def cell(self, dtype: str, lanes: int, start: Code) -> _Cell:
        """A variable."""
        made = _Cell(self, self._named(dtype, start, fixed=dtype == INDEX), len(self._loops))
        if dtype == INDEX:
            self._fixed.add(made.name)
        return made

    def join(self, how: str, value: Code, other: Code, dtype: str, lanes: int) -> Code:
        """Two partial results."""
        return self.apply(JOINS.get(how, how), [value, other], dtype, lanes)

    def fma(self, value: Code, other: Code, more: Code, dtype: str, lanes: int) -> Code:
        """A product and a sum, rounded once."""
        return self._named(dtype, f"fmaf({value}, {other}, {more})" if dtype == "fp32" else f"{value} * {other} + {more}")

    def transposed(self, vectors: Sequence[Code], dtype: str) -> Sequence[Code]:
        """UsageError: threads do not exchange squares."""
        raise UsageError("squares are not turned in a GPU's registers: ask for a schedule without tiles")

    def scratch(self, name: str, count: int, dtype: str) -> None:
        """A group's part of its block's shared memory; UsageError where a group is not a warp."""
        if self._lanes != WARP or dtype != "fp32":
            raise UsageError(f"memory of its own ({name}: {dtype}) has a program of whole warps, of fp32 alone")
        self._scratch[name] = Code(f"t{len(self.tensors) + len(self._scratch)}"), self.scratch_floats
        self.scratch_floats += count

    def _lane_address(self, tensor: str, index: Code, lanes: int) -> str:
        return f"{self._scratch[tensor][0]}[{index}{' + ht_lane' * (lanes > 1)}]"

    def _keep(self, path: str, value: Code, lanes: int) -> None:
        """Write to a warp's own memory, after all lanes have read what was there and before any reads what is."""
        items = self._loops[-1].items
        if not items or items[-1] != self._meeting():
            self._say(self._meeting())
        self._say(f"{'' if lanes > 1 else 'if (ht_lane == 0) '}{path} = {value};")
        self._say(self._meeting())
        self._loops[-1].ordered = True

    def memory(self, groups: int) -> list[str]:
        """Declarations of the memory of so many groups of a block."""
        if not self._scratch:
            return []
        own = f"ht_memory + threadIdx.x / {self._lanes} * {self.scratch_floats}"
        return [
            f"__shared__ float ht_memory[{groups * self.scratch_floats}];",
            *(f"float* const {name} = {own} + {begin};" for name, begin in self._scratch.values()),
        ]

    def neutral(self, how: str, dtype: str) -> Code:
        """Neutral element of a reduction."""
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
        result = self._named(dtype, value, fixed=False)
        how, width = JOINS.get(how, how), min(lanes, WARP)
        joined = function_call(how, [result, f"__shfl_xor_sync(ht_mask, {result}, ht_step)"], dtype)
        self._say(f"for (int ht_step = {width // 2}; ht_step > 0; ht_step /= 2) {result} = {joined};")
        if lanes > WARP:  # each warp's part through memory of the block, in the order of warps
            parts = f"ht_part{result}"
            self._say(f"__shared__ {TYPES[dtype]} {parts}[{lanes // WARP}];")
            self._say(f"if (threadIdx.x % {WARP} == 0) {parts}[threadIdx.x / {WARP}] = {result};")
            self._say("__syncthreads();")
            self._say(f"{result} = {parts}[0];")
            other = function_call(how, [result, f"{parts}[ht_at]"], dtype)
            self._say(f"for (int ht_at = 1; ht_at < {lanes // WARP}; ++ht_at) {result} = {other};")
            self._say("__syncthreads();")
        return result
