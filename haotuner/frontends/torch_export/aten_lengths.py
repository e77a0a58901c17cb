"""Sizes of torch's recurrent layers while torch traces: without this it walks every token, which fixes their number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@contextmanager
def lengths_kept(torch: Any) -> Iterator[None]:
    """While this is entered, recurrent layers are traced by the sizes of their results, and lengths stay symbolic.

    torch computes such a layer's sizes by its definition, a step for each token, for which the number of tokens must be
    known. What is recorded is the layer as it is, either way. ``torch.export`` itself replaces definitions in this manner
    (``_override_composite_implicit_decomp``); they are put back.
    """
    keys = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)
    ops = [getattr(torch.ops.aten, name).input for name in RECURRENT]
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
