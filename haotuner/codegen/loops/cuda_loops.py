"""CUDA C++ of one group: the expressions of ``c_loops.py``, as one launch. Correct first.

Where a reduction is needed above the last loop, a warp has a point of the loops around it: its lanes share the terms, then
the elements. Else a thread has a point. What keeps an order is a thread a row, but a recurrent layer a block a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from haotuner.codegen.expressions import Expression, Fold, Load, Variable, free_variables, parts
from haotuner.codegen.loops.c_loops import LoopsWriter
from haotuner.codegen.loops.c_math import C_TYPES, FUNCTIONS, joined, takes_double_bits
from haotuner.codegen.loops.c_ordered import ordered_node, ordered_source
from haotuner.codegen.loops.loop_nest import Group, Scope, elements_of
from haotuner.codegen.loops.strided_reads import LEAST_WIDE
from haotuner.codegen.sibling_outputs import SiblingOutput
from haotuner.codegen.vector_functions import FORMULAS, OF_TWO
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent
from haotuner.graph.graph import Graph
from haotuner.graph.types import HALVES

WARP, THREADS = 32, 256  # threads of a block, at most
WORDS = 500  # of eight bytes, of a kernel's parameters: 4 KB, and some to spare
SHUFFLED = ("fp32", "fp64", "int64", "int32", "uint64", "uint32")

# CUDA's own functions hold the bounds (4 ulp at most), and few devices compute as many doubles as floats.
_LIBRARY = "".join(
    f"INLINE float ht_{name}(float a{', float b' * (name in OF_TWO)}) {{ return {name}f(a{', b' * (name in OF_TWO)}); }}\n"
    for name in FORMULAS
    if name != "mod"
)
DOUBLE_BITS = """INLINE double bits64(int64_t i) { return __longlong_as_double(i); }
INLINE int64_t whole64(double f) { return __double_as_longlong(f); }
"""

# As microkernels/cuda/device/prelude.cuh, NVRTC has no headers.
PRELUDE = f"""#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define INT8_MIN (-128)
#define INT8_MAX 127
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define INT64_MIN (-9223372036854775807LL - 1)
#define INT64_MAX 9223372036854775807LL
#else
#include <math.h>
#include <stdint.h>
#endif
#ifndef INFINITY
#define INFINITY __uint_as_float(0x7f800000u)
#endif
#ifndef NAN
#define NAN __uint_as_float(0x7fc00000u)
#endif
#define restrict __restrict__
#define INLINE static __device__ __forceinline__
INLINE float bits(int32_t i) {{ return __uint_as_float((uint32_t)i); }}
INLINE int32_t whole(float f) {{ return (int32_t)__float_as_uint(f); }}
INLINE int64_t digit(int64_t* rest, int64_t of) {{ /* 64 bits take several times as long as 32 to be divided */
  const int64_t found = *rest;
  if ((found | of) >> 31 == 0) *rest = (int64_t)((uint32_t)found / (uint32_t)of);
  else *rest = found / of;
  return found - *rest * of;
}}
{FUNCTIONS}INLINE float ht_mod(float a, float b) {{
  float r = fmodf(a, b);
  return r == 0 ? copysignf(0.0f, b) : (r < 0) != (b < 0) ? r + b : r;
}}
{_LIBRARY}"""


def cuda_head_of(sources: Sequence[str]) -> str:
    """Beginning of the CUDA C++ of these groups."""
    return PRELUDE + (DOUBLE_BITS if takes_double_bits(sources) else "")


def device_loops_of(graph: Graph, name: str, size: Callable[[Extent], int]) -> Group:
    """The kernel ``name`` of a graph. ``size`` gives an extent's line in the size table. UsageError: it has none."""
    node, read = ordered_node(graph), _Read(size)
    if node is None:
        return _Writer(graph, name, read).group()
    lanes = THREADS if node.primitive == "recurrent" else 1
    source, tensors, loops = ordered_source(graph, node, f"{name}_row", read, block=lanes if lanes > 1 else 0)
    body = [
        *(f"  const int64_t e{index} = {_extent(loop, read)};" for index, loop in enumerate(loops)),
        f"  const int64_t count = {' * '.join(f'e{index}' for index in range(len(loops)))};",
        "  for (int64_t at = first; at < count; at += step) {",
        f"    int64_t rest = at, lo[{len(loops)}], hi[{len(loops)}];",
        *(f"    hi[{index}] = (lo[{index}] = digit(&rest, e{index})) + 1;" for index in reversed(range(len(loops)))),
        f"    {name}_row(s, a.t, lo, hi);",
        "  }",
    ]
    text = source.replace("static void", "static __device__ void", 1)
    kernel = _kernel(name, len(tensors), read, lanes, body)
    return Group(f"{text}\n{kernel}", tensors, loops, len(loops), lanes, tuple(read.lines))


def _kernel(name: str, tensors: int, read: _Read, lanes: int, body: Sequence[str]) -> str:
    """The words of a launch, and the kernel that takes them; ``first`` and ``step``: the points of a thread."""
    count = max(1, len(read.lines))
    if tensors + count > WORDS:
        raise UsageError(f"a group of {tensors} tensors and {count} sizes is more than a launch takes on a GPU")
    return "\n".join(
        [
            f"struct {name}_words {{ void* t[{tensors}]; int64_t s[{count}]; }};",
            f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(const {name}_words a) {{',
            "  const int64_t* s = a.s;",
            f"  const int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / {lanes};",
            f"  const int64_t step = (int64_t)gridDim.x * blockDim.x / {lanes};",
            f"  const int lane = threadIdx.x % {lanes};",
            *body,
            "}",
        ]
    )


def _extent(extent: Extent, read: _Read) -> str:
    return f"{extent}LL" if isinstance(extent, int) else f"s[{read(extent)}]"


class _Read:
    """Lines of the size table in the order in which a kernel takes them."""

    def __init__(self, size: Callable[[Extent], int]) -> None:
        self.size, self.lines = size, list[int]()

    def __call__(self, extent: Extent) -> int:
        line = self.size(extent)
        if line not in self.lines:
            self.lines.append(line)
        return self.lines.index(line)


class _Writer(LoopsWriter):
    clips = False  # lanes share terms evenly
    functions = False

    def __init__(self, graph: Graph, name: str, read: _Read) -> None:
        super().__init__(graph, name, read)
        self.read, self.lanes = read, 1
        self.at = Scope(frozenset())

    def group(self) -> Group:
        out = self.graph.outputs[0]
        extents = self.graph.types[out].shape
        result = elements_of(self.graph)
        variables = result.variables
        points, self.lanes = _cut(variables, extents, result.values)
        wide = [self._wide(extent, [self.top]) for extent in extents]
        names = [sibling.name for sibling in variables]
        self.top.lines.append(f"const int64_t count = {' * '.join(wide[:points]) or '1'};")
        self.at = Scope(
            frozenset(names[:points]), ["for (int64_t at = first; at < count; at += step)", *_places(names[:points], wide)]
        )
        stack = [self.top, self.at]
        for name, end in zip(names[points:], wide[points:], strict=True):
            shared = name == names[-1] and self.lanes > 1
            stack.append(self._loop(name, end, *(("lane", str(WARP)) if shared else ())))
        for sibling in (*result.beside, SiblingOutput(out, len(names), variables, result.value)):
            shared = self.lanes > 1 and not points < sibling.axes == len(names)  # else each lane has elements of its own
            once = [f"{name} == 0" for name in names[sibling.axes : points]] + ["lane == 0"] * shared
            self._beside(sibling, stack[: 2 + max(0, sibling.axes - points)], once)
        self._close(stack, 1)
        tensors, pointers, body = self._parts()
        pointers = [line.replace(")t[", ")a.t[") for line in pointers]
        source = _kernel(self.name, len(tensors), self.read, self.lanes, [*pointers, *body])
        return Group(source, tensors, extents, points, self.lanes, tuple(self.read.lines))

    def _shared(self, stack: Sequence[Scope]) -> bool:
        """True if all lanes of a warp are there together."""
        return self.lanes > 1 and (len(stack) == 1 or (len(stack) == 2 and stack[1] is self.at))

    def _share(self, stack: Sequence[Scope]) -> tuple[str, str]:
        return ("lane", str(WARP)) if self._shared(stack) else ("0", "1")

    def _joined(self, name: str, how: str, dtype: str, stack: Sequence[Scope]) -> list[Any]:
        if not self._shared(stack):
            return []
        dtype = "fp32" if dtype in HALVES else dtype  # what they are summed in
        kind = C_TYPES[dtype]
        passed = kind if dtype in SHUFFLED else "int"
        return [
            [
                "for (int by = 16; by > 0; by >>= 1)",
                f"const {kind} other = ({kind})__shfl_xor_sync(0xffffffffu, ({passed}){name}, by, 32);",
                f"{name} = {joined(how, name, 'other', dtype)};",
            ]
        ]


def _places(names: Sequence[str], wide: Sequence[str]) -> list[str]:
    """The variables of a point."""
    if not names:
        return []
    lines = ["int64_t rest = at;"]
    for index in reversed(range(1, len(names))):
        lines.append(f"const int64_t {names[index]} = digit(&rest, {wide[index]});")
    return [*lines, f"const int64_t {names[0]} = rest;"]


def _cut(variables: Sequence[Variable], extents: Sequence[Extent], values: Sequence[Expression]) -> tuple[int, int]:
    """Number of loops that make points, and of threads that share one."""
    order = [variable.name for variable in variables]
    whole = len(order)
    while whole and extents[whole - 1] == 1:
        whole -= 1
    every = [part for value in values for part in parts(value)]
    folds = [variable for variable in every if isinstance(variable, Fold) and free_variables(variable) <= set(order)]
    levels = [max((order.index(name) + 1 for name in free_variables(fold)), default=0) for fold in folds]
    above = [level for level in levels if level < whole]
    if above:
        return max(above), WARP
    beside = any(_beside(fold) for fold in folds)
    return len(order), WARP if beside else 1


def _beside(fold: Fold) -> bool:
    """True if neighbours of its innermost axis lie side by side, and there are enough of them."""
    variable, extent = fold.axes[-1]
    if isinstance(extent, int) and extent < LEAST_WIDE:
        return False
    loads = [part for part in parts(fold.value) if isinstance(part, Load) and part.indices]
    return any(isinstance(load.indices[-1], Variable) and load.indices[-1].name == variable.name for load in loads)
