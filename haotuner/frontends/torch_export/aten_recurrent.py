"""Rules of torch's LSTM, GRU and RNN, and their sizes while torch traces them.

Sizes of torch's recurrent layers while torch traces: without this it walks every token, which fixes their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule

RECURRENT_OPS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@contextmanager
def lengths_kept(torch: Any) -> Iterator[None]:
    """While this is entered, recurrent layers are traced by the sizes of their results, and lengths stay symbolic.

    torch computes such a layer's sizes by its definition, a step for each token, for which the number of tokens must be
    known. What is recorded is the layer as it is, either way. ``torch.export`` itself replaces definitions in this manner
    (``_override_composite_implicit_decomp``); they are put back.
    """
    keys = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)
    ops = [getattr(torch.ops.aten, name).input for name in RECURRENT_OPS]
    tables = [*((op.py_kernels, keys) for op in ops), (torch._decomp.decomposition_table, ops)]
    selected = [dict(table) for table, _ in tables]
    try:
        for table, places in tables:
            table.update(dict.fromkeys(places, _sizes_alone))
        _forget(ops)
        yield
    finally:
        for (table, _), item in zip(tables, selected, strict=True):
            table.clear()
            table.update(item)
        _forget(ops)


def _forget(ops: Any) -> None:
    for op in ops:
        op._dispatch_cache.clear()


def _sizes_alone(
    x: Any, states: Any, weights: Any, biased: bool, layers: int, dropout: float, train: bool, both: bool, batch_first: bool
) -> Any:
    """Results of the right sizes, without numbers; arguments as ``aten::lstm.input`` has them."""
    states = states if isinstance(states, (list, tuple)) else [states]
    result = x.new_empty([*x.shape[:2], states[0].shape[2] * (1 + both)])
    return (result, *(state.new_empty(state.shape) for state in states))


_ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}  # ONNX: iofc of ifgo, zrh of rzn


def _part(a: AtenContext, x: str, start: int, stop: int) -> str:
    return a.onnx("Slice", x, a.whole(start), a.whole(stop), a.whole(0))


def _gates(a: AtenContext, weight: str, op: str) -> str:
    order = _ORDER[op]
    if len(order) == 1:
        return weight
    hidden = int(a.g.types[weight].shape[0]) // len(order)
    return a.onnx("Concat", *(_part(a, weight, item * hidden, (item + 1) * hidden) for item in order), axis=0)


def _stacked(a: AtenContext, parts: Sequence[str]) -> str:
    return a.onnx("Concat", *(a.onnx("Unsqueeze", part, a.whole(0)) for part in parts), axis=0)


def _layers(op: str, activation: str = "") -> Rule:
    def rule(a: AtenContext) -> list[str]:
        states, weights, biased, layers, _, _, both, batch_first = a.inputs[1:9]
        states = states if isinstance(states, list) else [states]
        x = a.onnx("Transpose", a.at(0), perm=[1, 0, 2]) if batch_first else a.at(0)
        ways, each = 1 + bool(both), 4 if biased else 2
        if len(weights) != each * layers * ways:
            raise UsageError(f"{a.op}: a projection (proj_size) has no rule; use an LSTM without one and a linear layer")
        settings: dict[str, Any] = {
            "hidden_size": int(a.g.types[weights[1]].shape[1]),
            "direction": "bidirectional" if both else "forward",
        }
        if op == "GRU":
            settings["linear_before_reset"] = 1
        if activation:
            settings["activations"] = [activation] * ways
        last: list[list[str]] = [[] for _ in states]
        for layer in range(layers):
            own = [weights[each * (layer * ways + way) : each * (layer * ways + way + 1)] for way in range(ways)]
            w, r = (_stacked(a, [_gates(a, item[index], op) for item in own]) for index in (0, 1))
            bias = None
            if biased:
                bias = _stacked(a, [a.onnx("Concat", *(_gates(a, item, op) for item in way[2:]), axis=0) for way in own])
            begun = [_part(a, state, layer * ways, (layer + 1) * ways) for state in states]
            y, *ends = a.several(op, x, w, r, bias, None, *begun, **settings)
            turned = a.onnx("Transpose", y, perm=[0, 2, 1, 3])  # (tokens, batch, ways, hidden)
            shape = a.g.types[turned].shape
            x = a.onnx("Reshape", turned, a.whole([*shape[:2], ways * settings["hidden_size"]]))
            for item, end in zip(last, ends, strict=False):
                item.append(end)
        result = a.onnx("Transpose", x, perm=[1, 0, 2]) if batch_first else x
        return [result, *(a.onnx("Concat", *parts, axis=0) for parts in last)]

    return rule


RECURRENT: Mapping[str, Rule] = {
    "lstm.input": _layers("LSTM"),
    "gru.input": _layers("GRU"),
    "rnn_tanh.input": _layers("RNN", "Tanh"),
    "rnn_relu.input": _layers("RNN", "Relu"),
}
