"""``PackedLinear``: an ``nn.Linear`` served from a pack, which torch's own code can still read, copy, cast and save."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from haotuner.runtime.convolution import Convolution
from haotuner.runtime.linear import Linear
from haotuner.runtime.pack import Pack
from haotuner.torch.ops import Registered, packed_tensor, tensor_of, torch_type
from haotuner.words.op import Op


class PackedLinear(torch.nn.Module):  # type: ignore[misc]
    """An ``nn.Linear`` served from a pack; inference only. Takes any strides that ``nn.Linear`` takes.

    The product is computed in the op's type, sums in float32; the result has the type that ``nn.Linear`` would give: under
    autocast its type, after ``.bfloat16()`` bfloat16. A layer served in bfloat16 or float16 keeps that type.
    ``state_dict`` has ``weight`` and ``bias`` as before, and ``load_state_dict`` packs them anew.
    A deep copy shares the packed weight. Pickled, it becomes the ``nn.Linear`` that it stands for: swap again after loading.
    """

    def __init__(self, linear: Linear | Convolution, registered: Registered | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = self._sizes(linear)
        self._linear = linear
        self._own = torch_type(linear.bound.op.operands[0].dtype)  # what the product takes; the packed weight stays of it
        self._fused = bool(Op.parse(linear.name).epilogue)  # the activation behind it, too
        self.dtype = self._own  # of results outside autocast
        self._registered = registered  # the operator lives as long as this
        packet = None if registered is None else getattr(torch.ops.haotuner, linear.name, None)
        self._operator = None if packet is None else packet.default  # none of a convolution with an epilogue
        self.register_buffer("packed", None, persistent=False)
        self.register_buffer("row", None, persistent=False)
        self._show()

    @staticmethod
    def of(pack: Pack, name: str, source: torch.nn.Linear, registered: Registered | None = None) -> PackedLinear:
        """The layer that serves ``source`` by the pack's op ``name``."""
        return PackedLinear(pack.op(name).bind(source.weight, source.bias), registered).train(source.training)  # type: ignore[no-any-return]

    @property
    def weight(self) -> torch.Tensor:
        """A new tensor, of a linear ``(out_features, in_features)``: the weight is kept packed, unpacked when it is read."""
        return tensor_of(self._linear.weight(), self._own).to(self.dtype)

    @property
    def bias(self) -> torch.Tensor | None:
        """The bias ``(out_features,)``, or None."""
        return None if self.row is None else self.row.to(self.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` times the weight, plus the bias."""
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
            found = x.layout if isinstance(x, torch.Tensor) else type(x).__name__
            raise TypeError(f"{self._linear.name}: x is {found}; expected a strided torch.Tensor")
        kind = x.dtype
        if kind is self._own and self.dtype is kind and not torch.is_autocast_enabled("cpu"):
            return self._product(x)
        if torch.is_autocast_enabled("cpu") and kind in (torch.float32, torch.bfloat16, torch.float16):
            kind = torch.get_autocast_dtype("cpu")
        elif kind is not self.dtype:
            raise TypeError(f"{self._linear.name}: x has dtype {kind}; expected {self.dtype}, as the layer has")
        with torch.autocast("cpu", enabled=False):
            return self._product(x.to(self._own)).to(kind)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        if self._operator is not None and torch.compiler.is_compiling():
            more = () if self.row is None and self._fused else (self.row,)
            result: torch.Tensor = self._operator(x, self.packed, *more)
            return result
        if x.stride(-1) != 1 or x.dim() > 2:
            x = x.contiguous()
        found: torch.Tensor = self._linear(x)
        return found

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, op={self._linear.name}"

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedLinear:
        copy = PackedLinear(self._linear.twin(), self._registered)
        copy.dtype = self.dtype
        memo[id(self)] = copy
        return copy.train(self.training)  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self.weight, self.bias, self.training)

    def __copy__(self) -> PackedLinear:
        return self.__deepcopy__({})

    def _sizes(self, linear: Any) -> tuple[int, int]:
        """Features that come in and go out."""
        return linear.bound.op.k, linear.bound.op.n

    def _weight_shape(self) -> tuple[int, ...]:
        return self.out_features, self.in_features

    def _show(self) -> None:
        """Buffers that share the bound linear's memory: what the registered operator takes in a compiled model."""
        self.packed = packed_tensor(self._linear)
        bias = self._linear.bound.bias
        if self._fused:  # its epilogue is a bias, where there is one, and an activation
            bound: Any = self._linear.bound.constants
            bias = next(iter(bound.values() if isinstance(bound, Mapping) else bound), None)
        self.row = None if bias is None else torch.from_dlpack(bias)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PackedLinear:
        """``.to()``, ``.bfloat16()`` and the like: results change their type, the packed weight stays what it is."""
        asked = fn(torch.empty(0, dtype=self.dtype))
        if asked.device.type != "cpu":
            raise ValueError(
                f"{self._linear.name}: asked to move to {asked.device}; a layer served from a CPU pack stays on the CPU: "
                "move the model first, then swap"
            )
        if self._own is not torch.float32 and asked.dtype is not self._own:
            raise TypeError(
                f"{self._linear.name}: asked for {asked.dtype}; a layer served in {self._own} computes in that type: "
                "change the model's type first, then swap"
            )
        self.dtype = asked.dtype
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight
        if self._has_bias():
            destination[f"{prefix}bias"] = self.bias

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """As ``nn.Linear`` does; both are packed anew, and later calls see both or neither."""
        wanted: dict[str, tuple[int, ...]] = {"weight": self._weight_shape()}
        if self._has_bias():
            wanted["bias"] = (self.out_features,)
        given = {key: state_dict[f"{prefix}{key}"] for key in wanted if f"{prefix}{key}" in state_dict}
        missing_keys += [f"{prefix}{key}" for key in wanted if key not in given and strict]
        if strict:
            mine = {f"{prefix}{key}" for key in wanted}
            unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key not in mine]
        wrong = [key for key, value in given.items() if tuple(value.shape) != wanted[key]]
        error_msgs += [
            f"size mismatch for {prefix}{key}: copying a param with shape {tuple(given[key].shape)}, "
            f"the shape in current model is {wanted[key]}."
            for key in wrong
        ]
        if wrong or not given:
            return
        whole = {"weight": self.weight, "bias": self.bias} | given
        self._replace(whole["weight"], whole["bias"])

    def _has_bias(self) -> bool:
        """Whether the layer that it stands for has one."""
        return self.row is not None

    def _replace(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Serve these from now on."""
        self._linear.rebind(weight.detach().to("cpu", self._own), None if bias is None else bias.detach().float().cpu())
        self._show()


def _unpacked(weight: torch.Tensor, bias: torch.Tensor | None, training: bool) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta", dtype=weight.dtype)
    layer.weight = torch.nn.Parameter(weight)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias)
    return layer.train(training)
