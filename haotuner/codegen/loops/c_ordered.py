"""C of primitives in which the order of elements matters: each is a group of its own, its operands lie in memory.

Threads share what is independent: rows of a sort or a running total, sequences of a recurrent layer. A scatter is one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from haotuner.codegen.loops.c_math import MEMORY_TYPES, joined, loaded, stored
from haotuner.codegen.loops.c_recurrent import recurrent_lines
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, product
from haotuner.graph.graph import Graph, Node
from haotuner.graph.types import HALVES

ORDERED = ("arg_sort", "scan", "scatter", "suppress", "recurrent")

Found = tuple[list[str], tuple[Extent, ...]]  # lines of the body; extents of the loops that threads share


def ordered_node(graph: Graph) -> Node | None:
    """The primitive of a group that is one of these."""
    (last,) = (node for node in graph.nodes if node.output == graph.outputs[0])
    return last if last.primitive in ORDERED else None


def ordered_source(
    graph: Graph, node: Node, name: str, size: Callable[[Extent], int], block: int = 0
) -> tuple[str, tuple[str, ...], Any]:
    """The C function ``name``, the tensors that a call passes it, the extents of its loops. UsageError: it has no C.

    ``block``: threads of a GPU that call it together, of a recurrent layer; 0: one.
    """
    halves = [tensor for tensor in (*node.inputs, node.output) if graph.types[tensor].dtype in HALVES]
    if halves and node.primitive == "recurrent":
        raise UsageError(f"tensor {halves[0]}: a recurrent layer of {graph.types[halves[0]].dtype} has no plain loops")
    tensors = tuple(dict.fromkeys((*node.inputs, node.output)))

    def wide(extent: Extent) -> str:
        return f"{extent}LL" if isinstance(extent, int) else f"s[{size(extent)}]"

    lines, loops = _recurrent(graph, node, wide, block) if block else _WRITERS[node.primitive](graph, node, wide)
    pointers = []
    for index, tensor in enumerate((*node.inputs, node.output)):
        const, pointer = ("", "y") if tensor == node.output else ("const ", f"x{index}")
        kind = f"{const}{MEMORY_TYPES[graph.types[tensor].dtype]}*"
        pointers.append(f"  {kind} restrict {pointer} = ({kind})t[{tensors.index(tensor)}]; (void){pointer};")
    head = f"static void {name}(const int64_t* s, void* const* t, const int64_t* lo, const int64_t* hi) {{"
    return "\n".join([head, "  (void)s; (void)lo; (void)hi;", *pointers, *lines, "}"]), tensors, loops


def _rows(graph: Graph, node: Node) -> tuple[Extent, Extent, Extent]:
    """Elements before, along and behind the axis."""
    shape = graph.types[node.inputs[0]].shape
    axis = node.attributes["axis"] % len(shape)
    return product(shape[:axis]), shape[axis], product(shape[axis + 1 :])


def _scan(graph: Graph, node: Node, wide: Callable[[Extent], str]) -> Found:
    outer, along, inner = _rows(graph, node)
    dtype = graph.types[node.output].dtype
    item = joined(node.attributes["how"], loaded("y[at - inner]", dtype), loaded("x0[at]", dtype), dtype)
    return [
        f"  const int64_t n = {wide(along)}, inner = {wide(inner)};",
        "  for (int64_t o = lo[0]; o < hi[0]; ++o)",
        "    for (int64_t k = 0; k < n; ++k)",
        "      for (int64_t i = lo[1]; i < hi[1]; ++i) {",
        "        const int64_t at = (o * n + k) * inner + i;",
        f"        y[at] = k ? {stored(item, dtype)} : x0[at];",
        "      }",
    ], (outer, inner)


def _arg_sort(graph: Graph, node: Node, wide: Callable[[Extent], str]) -> Found:
    """Heapsort of the indices where they come to lie; of equals the first index first, NaN beyond all others."""
    outer, along, inner = _rows(graph, node)
    dtype = graph.types[node.inputs[0]].dtype
    first, other = ("b", "a") if node.attributes.get("falling", False) else ("a", "b")

    def less(p: str, q: str) -> str:
        mine, theirs = (loaded(f"x[{item} * inner]", dtype) for item in (p, q))
        return f"({mine} < {theirs} || ({theirs} != {theirs} && {mine} == {mine}))"

    return [
        f"  const int64_t n = {wide(along)}, inner = {wide(inner)};",
        "  for (int64_t o = lo[0]; o < hi[0]; ++o)",
        "    for (int64_t i = lo[1]; i < hi[1]; ++i) {",
        f"      const {MEMORY_TYPES[dtype]}* x = x0 + o * n * inner + i;",
        "      int64_t* z = y + o * n * inner + i;",
        f"#define BEFORE(a, b) ({less(first, other)} || (!{less(other, first)} && a < b))",
        "      for (int64_t k = 0; k < n; ++k) z[k * inner] = k;",
        "      for (int64_t start = n / 2, end = n; end > 1;) {",
        "        if (start > 0) --start;",
        "        else { --end; const int64_t last = z[end * inner]; z[end * inner] = z[0]; z[0] = last; }",
        "        int64_t root = start;",
        "        for (int64_t child; (child = 2 * root + 1) < end; root = child) {",
        "          if (child + 1 < end) {",
        "            const int64_t a = z[child * inner], b = z[(child + 1) * inner];",
        "            if (BEFORE(a, b)) ++child;",
        "          }",
        "          const int64_t a = z[root * inner], b = z[child * inner];",
        "          if (!BEFORE(a, b)) break;",
        "          z[root * inner] = b; z[child * inner] = a;",
        "        }",
        "      }",
        "#undef BEFORE",
        "    }",
    ], (outer, inner)


def _scatter(graph: Graph, node: Node, wide: Callable[[Extent], str]) -> Found:
    """Places outside of the tensor are left out: nothing is written beyond it, whatever a request holds."""
    how, dtype = node.attributes["how"], graph.types[node.output].dtype
    there = graph.types[node.output].shape[0]
    count = graph.types[node.inputs[1]].shape[0]
    both = (loaded("y[at]", dtype), loaded("x2[j]", dtype))
    new = "x2[j]" if how == "none" else stored(joined({"add": "sum", "mul": "prod"}.get(how, how), *both, dtype), dtype)
    return [
        f"  const int64_t n = {wide(there)}, count = {wide(count)};",
        "  memcpy(y, x0, (size_t)n * sizeof *y);",
        "  for (int64_t j = 0; j < count; ++j) {",
        "    const int64_t at = (int64_t)x1[j] + (x1[j] < 0 ? n : 0);",
        f"    if (at >= 0 && at < n) y[at] = {new};",
        "  }",
    ], (1,)


def _suppress(graph: Graph, node: Node, wide: Callable[[Extent], str]) -> Found:
    """A box is compared with those that are kept before it."""
    batch, classes, count = graph.types[node.output].shape
    return [
        f"  const int64_t n = {wide(count)}, classes = {wide(classes)};",
        "  for (int64_t b = lo[0]; b < hi[0]; ++b)",
        "    for (int64_t c = lo[1]; c < hi[1]; ++c) {",
        "      const float *score = x1 + (b * classes + c) * n, *boxes = x0 + b * n * 4;",
        "      const int64_t* order = x2 + (b * classes + c) * n;",
        "      uint8_t* kept = y + (b * classes + c) * n;",
        "      memset(kept, 0, (size_t)n);",
        "      int64_t found = 0;",
        "      for (int64_t k = 0; k < n && found < x3[0] && score[order[k]] > x5[0]; ++k) {",
        "        const float *p = boxes + order[k] * 4, own = (p[2] - p[0]) * (p[3] - p[1]);",
        "        int over = 0;",
        "        for (int64_t j = 0; j < k && !over; ++j) {",
        "          const float *q = boxes + order[j] * 4, area = (q[2] - q[0]) * (q[3] - q[1]);",
        "          const float high = (p[2] < q[2] ? p[2] : q[2]) - (p[0] > q[0] ? p[0] : q[0]);",
        "          const float across = (p[3] < q[3] ? p[3] : q[3]) - (p[1] > q[1] ? p[1] : q[1]);",
        "          const float common = high * across;",
        "          const int some = high > 0 && across > 0 && own > 0 && area > 0;",
        "          over = kept[j] && some && common / (own + area - common) > x4[0];",
        "        }",
        "        kept[k] = !over;",
        "        found += !over;",
        "      }",
        "    }",
    ], (batch, classes)


def _recurrent(graph: Graph, node: Node, wide: Callable[[Extent], str], block: int = 0) -> Found:
    tokens, batch, _ = graph.types[node.inputs[0]].shape
    return recurrent_lines(node.attributes, graph.types[node.output].dtype, wide(tokens), wide(batch), block), (batch,)


_WRITERS: dict[str, Callable[[Graph, Node, Callable[[Extent], str]], Found]] = {
    "arg_sort": _arg_sort,
    "scan": _scan,
    "scatter": _scatter,
    "suppress": _suppress,
    "recurrent": _recurrent,
}
