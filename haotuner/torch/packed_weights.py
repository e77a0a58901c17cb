"""Packed weights of a model's tensors, by the tensors themselves: packed when first called for, again after a change."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from haotuner.torch.layer_calls import LayerCall
from haotuner.torch.ops import Registered

Pairs = Sequence[tuple[str, LayerCall]]  # names of ops, and the calls that they serve


class PackedWeights:
    """Weights packed for the ops of one pack; graphs of the same model share them.

    A weight goes when its tensor does. Another tensor in the same graph, of a second model of one class, has its own.
    """

    def __init__(self, registered: Registered) -> None:
        self.registered = registered
        self._lock = threading.Lock()
        self._entries: dict[tuple[Any, ...], tuple[list[Any], torch.Tensor, torch.Tensor | None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, op: str, call: LayerCall, args: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Packed weight and row of a call, of the tensors at its positions in ``args`` as they are now."""
        tensors = [args[position] for position in call.inputs()]
        key = (op, *map(id, tensors), call.eps(args))
        state = [(tensor._version, tensor.data_ptr()) for tensor in tensors]
        with self._lock, torch.inference_mode(False), torch.no_grad():
            entry = self._entries.get(key)
            if entry is not None and entry[0] == state:
                return entry[1], entry[2]
            if entry is None:
                for tensor in tensors:
                    weakref.finalize(tensor, self._entries.pop, key, None).atexit = False
            weight, bias = call.folded(args)
            packed = self.registered.pack_weight(op, weight)
            row = None if bias is None else bias.float().contiguous().clone()
            self._entries[key] = state, packed, row
        return packed, row

    def followed(self, compiled: Callable[..., Any], pairs: Pairs, inputs: Sequence[Any]) -> Callable[..., Any]:
        """``compiled`` with the packed weights of the tensors that come with a call, packed again after a change.

        Torch guards neither which tensors come nor their numbers: models of one class share a graph. So versions and
        addresses of all tensors are compared in every call.
        """
        positions = tuple(dict.fromkeys(position for _, call in pairs for position in call.inputs()))
        folding = tuple(call for _, call in pairs if call.norm is not None and call.norm.eps_input is not None)

        def current(args: Sequence[Any]) -> tuple[list[Any], list[float], list[torch.Tensor]]:
            tensors = [(position, args[position]) for position in positions]
            state = [(position, weakref.ref(tensor), tensor._version, tensor.data_ptr()) for position, tensor in tensors]
            packed = [tensor for op, call in pairs for tensor in self.of(op, call, args) if tensor is not None]
            return state, [call.eps(args) for call in folding], packed

        latest = [current(inputs)]

        def served(*args: Any) -> Any:
            state, eps, packed = latest[0]
            for position, reference, version, address in state:
                tensor = args[position]
                if tensor is not reference() or tensor._version != version or tensor.data_ptr() != address:
                    break
            else:
                if not folding or eps == [call.eps(args) for call in folding]:
                    return compiled(*args, *packed)
            latest[0] = changed = current(args)
            return compiled(*args, *changed[2])  # another thread may have put its model's there meanwhile

        return served
