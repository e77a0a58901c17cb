"""torch on CPUs: eager, what a model does that is not compiled; and compiled by Inductor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from numpy.typing import NDArray

from haotuner.bench.contender import Call, Operands, Setting, UnsupportedOp, only
from haotuner.bench.images import channels_last
from haotuner.bench.operands import bound, images_of, plain_layer, plain_product
from haotuner.bench.peers.on_host import array, tensor, torch_for
from haotuner.bench.peers.torch_bytes import layer_of_bytes
from haotuner.bench.peers.torch_expressions import expression, factors
from haotuner.spec.op import Op

SEEN_ROWS = 37  # rows when the dynamic graph is compiled: neither 0 nor 1, which torch always specialises


class Torch:
    """Eager under inference mode; each call makes its output, but that of a plain batch of products.

    Layers of bytes run oneDNN's fused int8 kernels.
    """

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        self._torch = torch_for(setting.threads, inference=not self.alone)
        self.version = str(self._torch.__version__)
        self._op: Any = None
        self._last = False
        self._function: Callable[..., Any] = lambda: None
        self._constants: list[dict[str, Any]] = []
        self._layers: list[Callable[[Any], Call]] = []
        self._calls: list[Call] = []

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Keep weights as ``torch.nn.Linear`` and ``Conv2d`` do; channels last where images are."""
        self._op, self._last, self._calls, self._layers = op, channels_last(op), [], []
        self._constants = [{name: tensor(self._torch, values) for name, values in copy.items()} for copy in copies]
        if op.sums == "int32":
            self._layers = [layer_of_bytes(self._torch, op, constants) for constants in self._constants]
            return
        self._function = expression(self._torch, op)
        if self._last and "h" in op.axes:
            for constants in self._constants:
                constants["weight"] = constants["weight"].contiguous(memory_format=self._torch.channels_last)

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a copy."""
        self._calls = [self._call(index, operands, y) for index, operands in enumerate(calls)]
        return self._calls

    def result(self, index: int) -> NDArray[Any]:
        """Of one call, as it is timed."""
        made: Any = self._calls[index]()
        return array(made.movedim(1, -1) if self._last else made)

    def _call(self, index: int, operands: Operands, y: NDArray[Any]) -> Call:
        constants = self._constants[index] if bound(self._op) else {}
        tensors = {
            name: constants[name] if name in constants else tensor(self._torch, values) for name, values in operands.items()
        }
        tensors |= {name: tensors[name].movedim(-1, 1) for name in images_of(self._op) if self._last}
        if self._layers:
            return self._layers[index](tensors["x"])
        if plain_product(self._op) and not self.alone:  # compiled code makes its output
            return partial(self._torch.bmm, *factors(self._op, **tensors), out=tensor(self._torch, y))
        more = {name: tensors.pop(name) for name in self._op.epilogue_operands}
        return partial(self._function, *tensors.values(), **more)


class Inductor(Torch):
    """``torch.compile`` for extents that are left open; a round of plain layers is one compiled graph.

    A compiled model has its layers so: entering compiled code (20 us) is paid once for all. With one weight the graph has
    one layer: a graph that uses a weight eight times packs it eight times over, which is no longer hot (94 us a layer became
    222, m=1, n=2304, k=768, torch 2.13).
    """

    alone = True  # it times candidates while it compiles

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        from torch._inductor import config

        config.compile_threads = 1  # no pool of compiler processes beside the one that is timed
        config.max_autotune_gemm_backends = "ATEN,CPP"  # oneDNN, and Inductor's own micro-GEMM
        self._config, self._mode = config, ExitStack()
        self._graphs: dict[int, Callable[[Any], Any]] = {}  # of so many layers

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Compiled at the first call of a shape, which the race does not time; graphs of layers for any number of rows."""
        if op.sums == "int32":
            raise UnsupportedOp("it is raced in fp32, fp16 and bf16, not in int8")
        layers = plain_layer(op)
        if layers:
            only(op.dtype, "fp32")
        self._mode.close()
        if not layers:  # under inference mode nothing is frozen
            self._mode.enter_context(self._torch.inference_mode())
        super().prepare(op, copies)
        self._config.freezing = self._config.max_autotune = layers  # weights become constants, packed at compile time
        self._torch.compiler.reset()
        self._graphs = {}
        self._function = self._torch.compile(self._function, dynamic=True, fullgraph=True)

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a copy; of plain layers one call that computes them all."""
        self.width = len(calls) if plain_layer(self._op) else 1
        if not plain_layer(self._op):
            return super().aim(calls, y)
        if self.width not in self._graphs:
            self._graphs[self.width] = self._graph([constants["weight"] for constants in self._constants[: self.width]])
        self._calls = [partial(self._graphs[self.width], tensor(self._torch, calls[0]["x"]))]
        return self._calls

    def result(self, index: int) -> NDArray[Any]:
        """Of one call; of a graph of layers its first or its last output."""
        if not plain_layer(self._op):
            return super().result(index)
        outputs: Any = self._calls[0]()
        return array(outputs[0 if index == 0 else 1])

    def _graph(self, weights: list[Any]) -> Callable[[Any], Any]:
        """Layers of these weights. It returns its first and its last result whole and one element of each of the others.

        So none can be dropped, yet their outputs need not all live at once, and the compiler reuses the memory as it would
        between a model's layers.
        """
        torch = self._torch

        class Layers(torch.nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layers = torch.nn.ParameterList(torch.nn.Parameter(w, requires_grad=False) for w in weights)

            def forward(self, x: Any) -> Any:
                ys = [torch.nn.functional.linear(x, w) for w in self.layers]
                return ys[0], ys[-1], [y[0, 0] for y in ys[1:-1]]

        graph = torch.compile(Layers().eval(), dynamic=True, fullgraph=True)

        def run(x: Any) -> Any:
            with torch.no_grad():
                return graph(x)

        sample = torch.zeros(SEEN_ROWS, weights[0].shape[1])
        torch._dynamo.mark_dynamic(sample, 0)
        run(sample)
        return run
