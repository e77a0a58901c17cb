"""Contractions that a tuned kernel computes: dense layers, convolutions, and products of two activations.

Convolutions whose windows are one element wide, as convolutions of one line: kernels sum side by side along a line.

Rows of an image lie one behind another, so what is ``d`` rows lower lies ``d * width`` elements further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from haotuner.graph.extents import Extent, canonical, product, same
from haotuner.graph.graph import Graph, Node
from haotuner.microkernels.cpu.conv_direct import is_direct
from haotuner.partition.epilogue_fusion import EpilogueMatcher, FusedEpilogue, Rows, of_bytes
from haotuner.spec.op import Op

# A line's image, strides, dilations and pads, as conv2d has them.
Line = tuple[list[Extent], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def as_one_line(
    image: Sequence[Extent], taps: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> Line | None:
    """The image of one row that windows see alike; None of windows that are wide, of one tap, or of a width not fixed.

    ``image``, ``taps``, ``strides``, ``dilations``: of height and width; ``pads``: before both, then behind both. The
    taps become those of the width.
    """
    height, width = image
    alone = taps[1] == strides[1] == 1 and taps[0] > 1 and not pads[1] and not pads[3]
    if not alone or not isinstance(width, int) or (strides[0] > 1 and width > 1):
        return None
    return (
        [1, canonical(height * width)],
        (1, strides[0]),
        (1, dilations[0] * width),
        (0, pads[0] * width, 0, pads[2] * width),
    )


def joined_sides(shape: Sequence[Extent], sides: Sequence[int]) -> tuple[Extent, ...]:
    """A tensor's shape with both sides as one row."""
    first, last = sides
    return (*shape[:first], 1, product(shape[first : last + 1]), *shape[last + 1 :])


PLACED_BATCH = 3  # axes of a batch that a device counts over (HT_CUDA_BATCH_AXES)


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in memory seen otherwise: reshaped, then its axes reordered. ``shape`` empty: as it is.

    ``width``: it is a part of each row of the tensor, so many elements from ``first`` on; 0: all of them.
    """

    tensor: str
    shape: tuple[Extent, ...] = ()
    order: tuple[int, ...] = ()
    first: int = 0
    width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """``nodes``: outputs of the nodes that it computes; ``output``: the last one.

    ``shape``: of the op's output, where it is not that of the tensor; ``extents``: the op's dynamic axes.
    """

    kind: str  # dense, conv, product, online
    op: Op
    nodes: tuple[str, ...]
    output: str
    x: View
    w: View | None = None
    weight: Any = None
    constants: Mapping[str, Any] = field(default_factory=dict)
    passed: Mapping[str, str] = field(default_factory=dict)  # tensors by the name of the operand
    rows: Mapping[str, str] = field(default_factory=dict)  # the same, of one number for each feature
    x_shape: tuple[Extent, ...] = ()
    out_shape: tuple[Extent, ...] = ()
    out_order: tuple[int, ...] = ()
    extents: Mapping[str, Extent] = field(default_factory=dict)
    views: Mapping[str, View] = field(default_factory=dict)  # of an op without a weight of its own: all operands by name

    @property
    def reads(self) -> tuple[str, ...]:
        """Tensors that must be in memory."""
        views = [self.x.tensor, *([self.w.tensor] if self.w else [])]
        if self.views:
            views = [view.tensor for view in self.views.values()]
        return (*views, *self.passed.values(), *self.rows.values())


class Finder:
    """Looks a graph over once; ``products`` lists what it found, each node in one product at most.

    ``serves``: whether a device has kernels for an op; None: for all of them, and for kernels of online sums.
    """

    def __init__(self, graph: Graph, serves: Callable[[Op], bool] | None = None) -> None:
        self.graph, self.serves = graph, serves
        self.producers = {node.output: node for node in graph.nodes}
        self.readers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)

        self.follow = EpilogueMatcher(graph, self.producers, self.readers)

    def products(self) -> Iterator[Product]:
        """In the graph's order."""
        self.follow.used.clear()
        for node in self.graph.nodes:
            if node.primitive == "contract" and len(node.inputs) == 2 and self._of(node, "fp32", "int32"):
                result = self._dense(node) or self._conv(node) or self._batched(node)
                if result is not None:
                    self.follow.used.update(result.nodes)
                    yield result

    def _served(self, node: Node, last: str, features: int, plain: Op, behind: int = 0) -> FusedEpilogue | None:
        """As much of what follows a product as there are kernels for; None: there are none for the product alone.

        ``behind``: axes of the result behind that of the features.
        """
        whole = self._of(node, "int32")
        rows = Rows(
            features, lambda item: self._row(item, features, behind), lambda item: self._known_row(item, features, behind)
        )
        if whole:
            after = of_bytes(self.follow, last, rows)
        else:
            after = self.follow.carried(last, rows.of, features, regrouped=plain.kind == "dense").prefixes()
        if self.serves is not None:  # a device's model binds what is read of a channel with the weight
            after = (node for node in after if not node.rows)
        return next((node for node in after if self.serves is None or self.serves(node.of(plain))), None)

    def _of(self, node: Node, *dtypes: str) -> bool:
        """True if its tensors are all of one of these types."""
        return self.graph.types[node.output].dtype in dtypes and (
            len({self.graph.types[tensor].dtype for tensor in (*node.inputs, node.output)}) == 1
        )

    def _factors(self, node: Node, source: str) -> tuple[str, Any, str, tuple[tuple[str, str], ...]] | None:
        """The tensor in memory that a product reads, its constant weight, and the op's element type and options of types.

        Of sums in int32 the bytes that they are made of; None where one of both is none.
        """
        weight = np.asarray(self.graph.constants[node.inputs[1]])
        if self._of(node, "fp32"):
            return source, weight, "fp32", ()
        cast = self.producers.get(source)
        dtype = self.graph.types[cast.inputs[0]].dtype if cast is not None and cast.primitive == "cast" else ""
        if cast is None or dtype not in ("uint8", "int8") or weight.min(initial=0) < -128 or weight.max(initial=0) > 127:
            return None
        return cast.inputs[0], weight.astype(np.int8), "int8", (("in", "int8"),) if dtype == "int8" else ()

    def _shape(self, tensor: str) -> tuple[Extent, ...]:
        return self.graph.types[tensor].shape

    # Dense layers

    def _dense(self, node: Node) -> Product | None:
        """(…, k) times a constant (k, n) or (n, k)."""
        x, w = node.inputs
        labels, _, out = node.attributes["labels"].partition("->")
        of_x, of_w = labels.split(",")
        if w not in self.graph.constants or len(of_w) != 2 or of_x[-1] not in of_w or x in self.graph.constants:
            return None
        k, n = of_x[-1], of_w.replace(of_x[-1], "")
        if out != of_x[:-1] + n or n in of_x:
            return None
        factors = self._factors(node, x)
        if factors is None:
            return None
        source, weight, dtype, options = factors
        rows = weight if of_w == n + k else weight.T
        (features, depth), nodes = rows.shape, [node.output]
        plain = Op(kind="dense", static=(("n", features), ("k", depth)), dtype=dtype, options=options)
        after = self._served(node, node.output, features, plain)
        if after is None:
            return None
        nodes += after.nodes
        m = product(self._shape(x)[:-1])
        return Product(
            kind="dense", op=after.of(plain), nodes=tuple(nodes), output=nodes[-1], x=View(source), weight=rows,
            constants=after.constants, passed=after.passed, rows=after.rows, x_shape=(m, depth), out_shape=(m, features),
            extents={"m": m},
        )  # fmt: skip

    def _row(self, tensor: str, count: int, behind: int = 0) -> Any:
        """A constant that is one number for each of an axis, ``behind`` it there being as many others; else None."""
        value = self.graph.constants.get(tensor)
        if value is None or value.size != count or value.ndim <= behind or value.shape[-1 - behind] != count:
            return None
        return np.ascontiguousarray(value.reshape(-1))

    def _known_row(self, tensor: str, count: int, behind: int = 0) -> str | None:
        """Tensor (count,) that one in fp32 is, seen through what moves no element of it; None if it is no such row."""
        shape = self._shape(tensor)
        if len(shape) <= behind or [extent for extent in shape if extent != 1] != [count] or shape[-1 - behind] != count:
            return None
        while self._shape(tensor) != (count,):
            node = self.producers.get(tensor)
            if node is None or node.primitive not in ("reshape", "transpose"):
                return None
            tensor = node.inputs[0]
        return tensor if tensor in self.producers and self.graph.types[tensor].dtype == "fp32" else None

    # Convolutions

    def _conv(self, node: Node) -> Product | None:
        """Windows of an image times a constant weight, groups too; see frontends/onnx/convolutions.py for how it is said.

        The image has its channels first, or last (``graph/channels_last.py``).
        """
        x, w = node.inputs
        labels, _, out = node.attributes["labels"].partition("->")
        of_x, of_w = labels.split(",")
        if w not in self.graph.constants or x in self.graph.constants:
            return None
        grouped = of_w.startswith("gfc")
        read, made = ("gc", "gf") if grouped else ("c", "f")
        if not of_w.startswith(f"{made}c"):
            return None
        window, image = of_w[len(made) + 1 :], out.replace("b", "").replace(made, "")
        rank, at_end = len(image), out == f"b{image}{made}"
        lies = f"b{image}{read}{window}" if at_end else f"b{read}{image}{window}"
        if of_x != lies or out not in (f"b{made}{image}", f"b{image}{made}") or rank not in (1, 2):
            return None
        sides = range(1, 1 + rank) if at_end else range(2, 2 + rank)
        weight = self.graph.constants[w]
        groups = weight.shape[0] if grouped else 1
        weight = weight.reshape(-1, *weight.shape[2:]) if grouped else weight
        weight = weight.reshape(*weight.shape[:2], *(weight.shape[2:] or (1,) * rank))
        nodes, source = [node.output], x
        if grouped:
            parted = self.producers.get(source)
            if parted is None or parted.primitive != "reshape":
                return None
            source = parted.inputs[0]
        strides, dilations, pads = (1,) * rank, (1,) * rank, (0,) * 2 * rank
        if window:
            slid = self.producers.get(source)
            if slid is None or slid.primitive != "window" or tuple(slid.attributes["axes"]) != tuple(sides):
                return None
            strides, dilations = tuple(slid.attributes["strides"]), tuple(slid.attributes["dilations"])
            source = slid.inputs[0]
        padded = self.producers.get(source)
        if padded is not None and padded.primitive == "pad" and padded.attributes["mode"] == "constant":
            ends = [padded.attributes[end] for end in ("before", "after")]
            fixed = all(isinstance(item, int) for end in ends for item in end) and padded.attributes.get("value", 0) == 0
            if fixed and not any(item for end in ends for axis, item in enumerate(end) if axis not in sides):
                pads = tuple(end[axis] for end in ends for axis in sides)
                source = padded.inputs[0]
        factors = self._factors(node, source)
        if factors is None:
            return None
        source, weight, dtype, options = factors[0], factors[1].reshape(weight.shape), *factors[2:]
        features, last = weight.shape[0], node.output
        if grouped:  # the result is reshaped to all features
            whole = self.follow.only_reader(last)
            if whole is None or whole.primitive != "reshape" or len(self._shape(whole.output)) != 2 + rank:
                return None
            last = whole.output
            nodes.append(last)
        shape = self._shape(source)
        if not same(shape[-1 if at_end else 1], weight.shape[1] * groups):
            return None
        image = [shape[axis] for axis in sides]
        seen = as_one_line(image, weight.shape[2:], strides, dilations, pads) if rank == 2 else None
        if seen is not None:
            image, strides, dilations, pads = seen
            weight = weight.swapaxes(2, 3)
        taps = zip(("r", "s")[-rank:], weight.shape[2:], strict=True)
        for name, values, usual in (("stride", strides, 1), ("pad", pads, 0), ("dilation", dilations, 1)):
            if any(value != usual for value in values):
                options = (*options, (name, ".".join(map(str, values))))
        options = (*options, ("groups", str(groups))) if groups > 1 else options
        options = (*options, ("layout", ("nwc", "nhwc")[rank - 1])) if at_end else options
        static = (("c", weight.shape[1] * groups), ("f", features), *taps)
        plain = Op(kind=f"conv{rank}d", static=static, dtype=dtype, options=options)
        alone = features * weight.shape[1] == 1 and dtype == "fp32" and self.serves is None
        if alone and not is_direct(plain):
            return None  # a filter over a signal: kernels compute features or channels side by side, loops places
        selected = self._served(node, last, features, plain, 0 if at_end else rank)
        if selected is None:
            return None
        nodes += selected.nodes
        extents = {"b": shape[0], **dict(zip(("h", "w")[-rank:], image, strict=True))}
        lines = (shape, self._shape(nodes[-1])) if seen is not None else None
        x_shape, out_shape = (joined_sides(line, sides) for line in lines) if lines else ((), ())
        return Product(
            kind="conv", op=selected.of(plain), nodes=tuple(nodes), output=nodes[-1], x=View(source),
            extents=extents, weight=np.ascontiguousarray(weight), constants=selected.constants, passed=selected.passed,
            rows=selected.rows, x_shape=x_shape, out_shape=out_shape,
        )  # fmt: skip

    # Two activations

    def _batched(self, node: Node) -> Product | None:
        x, w = node.inputs
        if not self._of(node, "fp32"):
            return None
        labels, _, out = node.attributes["labels"].partition("->")
        of_x, of_w = labels.split(",")
        batch = "".join(item for item in out if item in of_x and item in of_w)
        m, n = (out.replace("".join(batch), "")[:1], out[-1:])
        if len(batch) < 1 or out != batch + m + n or m not in of_x or n not in of_w or m in of_w or n in of_x:
            return None
        k = of_x.replace(m, "").replace(batch, "")
        if (
            len(k) != 1
            or of_x[: len(batch)] != batch
            or of_w[: len(batch)] != batch
            or sorted(of_w) != sorted(batch + k + n)
        ):
            return None
        if len(of_x) != len(batch) + 2:
            return None
        shape_x, shape_w = self._shape(x), self._shape(w)
        extents = {"b": product(shape_x[: len(batch)]), "m": shape_x[of_x.index(m)], "n": shape_w[of_w.index(n)],
                   "k": shape_x[of_x.index(k)]}  # fmt: skip
        left, right = self.seen(x), self.seen(w)
        across_x, across_w = self._unit_axis(x, left), self._unit_axis(w, right)
        lay_x = "t" if of_x[across_x] == m else "n"
        lay_w = "t" if of_w[across_w] == k else "n"
        if lay_x == "t" and lay_w == "t":
            lay_x = "n"
        left = self._transposed(x, left, of_x[-1] != (m if lay_x == "t" else k))
        right = self._transposed(w, right, of_w[-1] != (k if lay_w == "t" else n))
        layout = {"nn": "", "nt": "nt", "tn": "tn"}[lay_x + lay_w]
        nodes, last, constants, passed = [node.output], node.output, {}, {}
        for function in ("mul", "div"):
            scaled = self.follow.after(last, function)
            value = self.follow.number(scaled[1]) if scaled else None
            if scaled and value and self.producers[scaled[0]].inputs[0] == last:
                constants["scale"] = np.float32(value if function == "mul" else 1 / value)
                last = scaled[0]
                nodes.append(last)
                break
        masked = self.follow.added(last)
        if masked and masked[1] not in self.graph.constants and self._mask(masked[1], last):
            passed["mask"] = masked[1]
            last = masked[0]
            nodes.append(last)
        static = {axis: e for axis, e in extents.items() if isinstance(e, int) and axis in "nk"}
        op = Op(kind="batch_matmul", static=tuple(static.items()), options=(("layout", layout),) if layout else ())
        dynamic = {axis: e for axis, e in extents.items() if axis not in static}
        if self.serves is not None and not (len(batch) <= PLACED_BATCH and self.serves(op)):
            return None
        order: tuple[int, ...] = ()
        after = self.follow.only_reader(last)
        if after is not None and after.primitive == "transpose" and after.attributes["order"][-1] == len(out) - 1:
            order = tuple(after.attributes["order"])
            last = after.output
            nodes.append(last)
        return Product(
            kind="product", op=op, nodes=tuple(nodes), output=last, x=left, w=right, constants=constants,
            passed=passed, out_order=order, extents=dynamic,
        )  # fmt: skip

    def _mask(self, tensor: str, other: str) -> bool:
        own, whole = self._shape(tensor), self._shape(other)
        return len(own) == len(whole) and self.graph.types[tensor].dtype == "fp32"

    def seen(self, tensor: str) -> View:
        """Reorderings of a reshape of what is in memory, or of a part of its rows; none of them moves anything."""
        order = tuple(range(len(self._shape(tensor))))
        node = self.producers.get(tensor)
        while node is not None and node.primitive == "transpose":
            order = tuple(node.attributes["order"][axis] for axis in order)
            tensor = node.inputs[0]
            node = self.producers.get(tensor)
        shape = self._shape(tensor)
        while node is not None and node.primitive == "reshape":
            tensor = node.inputs[0]
            node = self.producers.get(tensor)
        first, width = self._part_of_rows(tensor, shape)
        return View(self.producers[tensor].inputs[0] if width else tensor, shape, order, first, width)

    def _part_of_rows(self, tensor: str, shape: Sequence[Extent]) -> tuple[int, int]:
        """First element and width of a part of each row of a made tensor; 0 and 0 where this tensor is none.

        ``shape``: in which it is read, whose last axes must be those of a row. Kernels of devices read no parts.
        """
        node = self.producers.get(tensor)
        if node is None or node.primitive != "slice" or self.serves is not None:
            return 0, 0
        rank, row = len(self._shape(tensor)), self._shape(tensor)[-1]
        (of,), ends = node.inputs, [node.attributes[name] for name in ("axes", "starts", "steps")]
        if of not in self.producers or tuple(axis % rank for axis in ends[0]) != (rank - 1,) or tuple(ends[2]) != (1,):
            return 0, 0
        whole, first = self._shape(of)[-1], ends[1][0]
        if not (
            isinstance(whole, int)
            and isinstance(row, int)
            and isinstance(first, int)
            and 1 < row < whole
            and 0 <= first <= whole - row
        ):
            return 0, 0
        run = 1
        for extent in reversed(shape):
            if run >= row or not isinstance(extent, int):
                break
            run *= extent
        return (first, row) if run == row else (0, 0)

    def _unit_axis(self, tensor: str, view: View) -> int:
        """The axis whose neighbours lie side by side."""
        return view.order.index(len(view.order) - 1)

    def _transposed(self, tensor: str, view: View, swap: bool) -> View:
        if not swap:
            return view
        return replace(view, order=(*view.order[:-2], view.order[-1], view.order[-2]))
