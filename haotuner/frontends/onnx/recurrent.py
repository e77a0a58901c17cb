"""Rules of LSTM, GRU and RNN: products of the whole sequence, then the recurrent primitive, one for each direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from haotuner.frontends.onnx.layout import cut, reshaped, transposed
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph.recurrent import GATES

DEFAULTS = {"lstm": ["sigmoid", "tanh", "tanh"], "gru": ["sigmoid", "tanh"], "rnn": ["tanh"]}
# Default alpha and beta of activations; None: an activation takes none.
SETTINGS: Mapping[str, tuple[float | None, float | None]] = {
    "hardsigmoid": (0.2, 0.5), "elu": (1.0, None), "leakyrelu": (0.01, None), "affine": (1.0, 0.0),
    "thresholdedrelu": (1.0, None), "scaledtanh": (1.0, 1.0),
}  # fmt: skip


def _direction(c: NodeContext, index: int, number: int) -> str | None:
    """One direction's part of an input."""
    tensor = c.maybe(index)
    if tensor is None:
        return None
    return reshaped(c, cut(c, tensor, 0, number, number + 1), c.g.types[tensor].shape[1:])


def _activations(c: NodeContext, kind: str, number: int) -> list[tuple[str, float, float]]:
    """Name, alpha and beta of one direction's activations.

    The file's alphas belong to the activations that take one, in their order over all directions; betas likewise.
    """
    own = len(DEFAULTS[kind])
    names = [str(name).lower() for name in c.attribute("activations", [])]
    alphas, betas = (iter(c.attribute(key, [])) for key in ("activation_alpha", "activation_beta"))
    result = list[tuple[str, float, float]]()
    for name in names[: (number + 1) * own] or DEFAULTS[kind] * (number + 1):
        alpha, beta = SETTINGS.get(name, (None, None))
        result.append((name, _setting(alpha, alphas), _setting(beta, betas)))
    return result[number * own :]


def _setting(default: float | None, values: Iterator[float]) -> float:
    """The next number that the file gives, for who takes one; else the default."""
    return 0.0 if default is None else float(next(values, default))


def _multiplied(c: NodeContext, x: str, number: int) -> str:
    """The sequence (tokens, batch, inputs) times one direction's weight."""
    w = _direction(c, 1, number)
    assert w is not None
    return c.g.add("contract", x, w, labels="tbi,gi->tbg")


@dataclass(frozen=True, slots=True)
class StateWeights:
    """One direction's weights of the state: turned, or bytes; ``more`` operands and ``options`` of the primitive."""

    transposed: str
    hidden: int
    more: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def _state_weights(c: NodeContext, number: int) -> StateWeights:
    r = _direction(c, 2, number)
    assert r is not None
    hidden = c.g.types[r].shape[1]
    if not isinstance(hidden, int):
        raise c.bad(f"its number of units, {hidden}, depends on the request; give the weights fixed sizes")
    return StateWeights(transposed(c, r, (1, 0)), hidden)


def _one_way(c: NodeContext, kind: str, x: str, number: int, products: str, state: StateWeights, *, reverse: bool) -> str:
    """(tokens, batch, 2 hidden)."""
    g, gates, dtype, hidden = c.g, GATES[kind], c.type().dtype, state.hidden
    tokens, batch = g.types[x].shape[:2]
    both = _direction(c, 3, number)
    inner = g.add("broadcast", g.constant(0, dtype), shape=(gates * hidden,))
    if both is not None:
        products = g.map("add", products, cut(c, both, 0, 0, gates * hidden))
        inner = cut(c, both, 0, gates * hidden, 2 * gates * hidden)
    zero = g.constant(0, dtype)
    h = _direction(c, 5, number) or g.add("broadcast", zero, shape=(batch, hidden))
    cell = (_direction(c, 6, number) if kind == "lstm" else None) or g.add("broadcast", zero, shape=(batch, hidden))
    peepholes = (_direction(c, 7, number) if kind == "lstm" else None) or g.add("broadcast", zero, shape=(3 * hidden,))
    lengths = c.maybe(4)
    if lengths is None:
        lengths = g.add("broadcast", g.of_extents([tokens], "int64"), shape=(batch,))
    options: dict[str, Any] = {"clip": c.attributes["clip"]} if "clip" in c.attributes else {}
    options |= state.options
    return g.add(
        "recurrent", products, state.transposed, inner, peepholes, h, cell, lengths, *state.more,
        kind=kind, hidden=hidden, reverse=reverse,
        activations=tuple(_activations(c, kind, number)), coupled=bool(c.attribute("input_forget", 0)),
        linear_before_reset=bool(c.attribute("linear_before_reset", 0)),
        **options,
    )  # fmt: skip


def layer(
    kind: str,
    multiplied: Callable[[NodeContext, str, int], str] = _multiplied,
    state_weights: Callable[[NodeContext, int], StateWeights] = _state_weights,
) -> Rule:
    """``multiplied``: the sequence times a direction's weight."""

    def rule(c: NodeContext) -> list[str]:
        g, batch_first = c.g, bool(c.attribute("layout", 0))
        turn = (1, 0, 2)
        if batch_first:
            firsts = {5: c.maybe(5), 6: c.maybe(6) if kind == "lstm" else None}
            turned = [transposed(c, item, turn) if at in firsts and (item := firsts[at]) else operand
                      for at, operand in enumerate(c.inputs)]  # fmt: skip
            c = NodeContext(g, c.op, tuple(turned), c.attributes, c.opset, c.outputs)
        x = transposed(c, c.tensor(0), turn) if batch_first else c.tensor(0)
        tokens, batch = g.types[x].shape[:2]
        way = c.attribute("direction", "forward")
        if way not in ("forward", "reverse", "bidirectional"):
            raise c.bad(f"direction {way!r} is unknown")
        backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[way]
        states = [state_weights(c, number) for number in range(len(backwards))]
        ways = [
            _one_way(c, kind, x, number, multiplied(c, x, number), states[number], reverse=reverse)
            for number, reverse in enumerate(backwards)
        ]
        hidden = states[0].hidden
        every: list[str] = []
        last_h: list[str] = []
        last_c: list[str] = []
        for way_, reverse in zip(ways, backwards, strict=True):
            h = cut(c, way_, 2, 0, hidden)
            every.append(reshaped(c, h, (tokens, 1, batch, hidden)))
            for selected, low in ((last_h, 0), (last_c, hidden)):
                selected.append(_last(c, cut(c, way_, 2, low, low + hidden), reverse=reverse))
        y, yh, yc = (
            parts[0] if len(parts) == 1 else g.add("concat", *parts, axis=axis)
            for parts, axis in ((every, 1), (last_h, 0), (last_c, 0))
        )
        if batch_first:
            y, yh, yc = transposed(c, y, (2, 0, 1, 3)), transposed(c, yh, turn), transposed(c, yc, turn)
        return [y, yh, yc]

    return rule


def _last(c: NodeContext, states: str, *, reverse: bool) -> str:
    """(1, batch, hidden): the state after the last token of each sequence, in the direction's own order; 0 of no tokens."""
    tokens, batch, hidden = c.g.types[states].shape
    if not isinstance(tokens, int) and not c.has_input(4):
        nothing = c.g.add("broadcast", c.g.constant(0, c.type().dtype), shape=(1, batch, hidden))
        both = c.g.add("concat", *((states, nothing) if reverse else (nothing, states)), axis=0)
        return cut(c, both, 0, 0, 1) if reverse else cut(c, both, 0, tokens, tokens + 1)
    if reverse:
        return cut(c, states, 0, 0, 1)
    if not c.has_input(4):
        return cut(c, states, 0, tokens - 1, tokens)
    position = c.g.map("sub", c.g.add("cast", c.tensor(4), dtype="int64"), 1)
    row = c.g.map("add", c.g.map("mul", position, c.g.of_extents([batch], "int64")),
                  c.g.add("iota", extent=batch, dtype="int64"))  # fmt: skip
    flat = reshaped(c, states, (tokens * batch, hidden))
    return reshaped(c, c.g.add("gather", flat, row, axis=0), (1, batch, hidden))


RECURRENT: Mapping[str, Rule] = {"LSTM": layer("lstm"), "GRU": layer("gru"), "RNN": layer("rnn")}
