"""``NamedTensors``: the ``_parameters`` of a served layer, for who looks there for its weight."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError

if TYPE_CHECKING:
    from haotuner.torch.layer import PackedLinear


class NamedTensors(dict[str, Any]):
    """Parameters by name; ``weight`` and ``bias`` by name only: whoever iterates does not meet them.

    Parametrizations and pruning look a weight up here and put another in its place. To set one is to serve it.
    UsageError: one is deleted, for it is packed and cannot be computed anew at each call.
    """

    def __init__(self, layer: PackedLinear, op: str, names: Collection[str]) -> None:
        super().__init__()
        self._layer, self._op, self._names = weakref.ref(layer), op, names

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._names

    def __missing__(self, name: str) -> Any:
        if name in self._names:
            return getattr(self._layer(), name)
        raise KeyError(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._names:
            setattr(self._layer(), name, value)
        else:
            super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        if name in self._names:
            raise no_other_weight(self._op, name)
        super().__delitem__(name)

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return {name: deepcopy(value, memo) for name, value in self.items()}

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    def moved(self, layer: PackedLinear, memo: dict[int, Any]) -> NamedTensors:
        """Copies of the parameters, as those of a copy of the layer."""
        other = NamedTensors(layer, self._op, self._names)
        other.update(deepcopy(self, memo))
        return other


def no_other_weight(layer: str, name: str) -> UsageError:
    """Error where a weight is to be deleted, to be computed anew at each call, or to lie in other memory."""
    return UsageError(
        f"{layer}: {name} of a served layer is packed; it cannot be parametrized, pruned, deleted or set_ to other memory. "
        "Do that before the swap, which leaves such a layer, or make it permanent (remove_parametrizations, prune.remove) "
        "and swap then; copy_ and assignments change a served weight"
    )
