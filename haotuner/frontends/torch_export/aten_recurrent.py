"""Rules of torch's LSTM, GRU and RNN: layer by layer, gates brought into ONNX's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from haotuner.frontends.torch_export.aten_call import AtenContext, Rule

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
