"""``PackedLinear``: an ``nn.Linear`` served from a pack; torch's own code reads, writes, copies, casts and saves it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from torch.autograd import forward_ad

from haotuner.runtime.call import REFUSED
from haotuner.runtime.convolution import Convolution
from haotuner.runtime.linear import Linear
from haotuner.runtime.pack import Pack
from haotuner.torch.folding import Fold, is_plain, step_of
from haotuner.torch.layer_state import checked_state, plain_layer
from haotuner.torch.op_definition import is_recorded, is_watched, refuse_recording, refuse_tangent
from haotuner.torch.ops import Registered, packed_tensor, tensor_of, torch_type
from haotuner.torch.ties import SharesParameters
from haotuner.torch.weights import PRESENCE, NamedTensors, PackedWeight, no_other_weight

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
          "_forward_hooks_always_called", "_state_dict_hooks", "_state_dict_pre_hooks")  # fmt: skip
_TENSOR, _FLOAT64, _HALVES = torch.Tensor, torch.float64, (torch.bfloat16, torch.float16)
_UNUSUAL = (*REFUSED, IndexError)  # of a call with other operands: torch's, too, for axes that are not there


def groups_of(layer: Any) -> int | None:
    """Groups of a transposed convolution; None of another layer."""
    return layer.groups if getattr(layer, "transposed", False) else None


class PackedLinear(SharesParameters, torch.nn.Module):  # type: ignore[misc]
    """An ``nn.Linear`` served from a pack; inference only. Takes any strides that ``nn.Linear`` takes.

    The product is computed in the op's type, sums in float32; the result has the type that ``nn.Linear`` would give: under
    autocast its type, after ``.bfloat16()`` bfloat16. A layer served in bfloat16 or float16 keeps that type.
    Where the op computes a norm or an activation behind the layer, too, only ``with_followers`` does so. A call of the layer
    is the layer alone: by the op ``plain``, where the pack holds it, else by torch.
    ``state_dict`` has ``weight`` and ``bias`` as before, and ``load_state_dict`` packs them anew; so do writes into them and
    assignments. It has the layer's other attributes, and one parameter without elements, for who asks for a type or device.
    ``isinstance`` takes it for the layer that it stands for, and ``type`` does not.
    A deep copy shares the packed weight. Pickled, it becomes the layer that it stands for: swap again after loading.
    """

    def __new__(cls, linear: Any = None, source: Any = None, *more: Any, **named: Any) -> PackedLinear:
        """A layer of ``cls`` that is one of the source's class, too; without a source one of ``cls``, as copies are made."""
        kind = cls if source is None or isinstance(source, PackedLinear) else _served_as(cls, type(source))  # type: ignore[arg-type]
        made: PackedLinear = super().__new__(kind)
        return made

    def __init__(
        self, linear: Linear | Convolution, source: Any, registered: Registered | None = None, *, plain: str = "",
        fold: Fold | None = None,
    ) -> None:  # fmt: skip
        torch.nn.Module.__init__(self)
        self._kind: type = source._kind if isinstance(source, PackedLinear) else type(source)
        self._named = tuple(key for key in source.__dict__ if not key.startswith("_") and key != "training")
        self.__dict__.update({key: source.__dict__[key] for key in self._named})
        self._shape, self._biased = tuple(source.weight.shape), source.bias is not None
        self.__dict__["_parameters"] = NamedTensors(self, linear.name, tuple(self.tensors()))
        self._linear, self._fold, self._plain_name = linear, fold, plain or linear.name
        self._own = torch_type(linear.bound.op.operands[0].dtype)  # what the product takes; the packed weight stays of it
        steps = linear.bound.op.op.epilogue
        self._fused = bool(steps)
        self._step = steps[-1] if steps and steps[-1] != "bias" else ""  # the activation behind it
        self._count = bool(self._step) + (fold is not None)  # modules behind it that the op computes, too
        self.dtype = self._own  # of results outside autocast
        self._numbers: dict[str, torch.Tensor] = {}  # weight and bias unpacked, once they were read
        if fold is not None:
            self._numbers = {"weight": source.weight.detach().clone()}
            if self._biased:
                self._numbers["bias"] = source.bias.detach().clone()
        self._handles: list[weakref.ref[PackedWeight]] = []
        self._ties = {}  # parameters that other modules have, too
        self.graded: dict[str, PackedWeight] = {}  # tensors whose gradient somebody set: they live as long as that
        self._registered = registered  # the operator lives as long as this
        packet = None if registered is None else getattr(registered.namespace, linear.name, None)
        self._operator = None if packet is None else packet.default
        self.__dict__["_former"] = None
        self.__dict__["_alone"] = None  # serves the layer without what follows; no child: its state is this one's
        self.register_buffer("packed", None, persistent=False)
        self.register_buffer("row", None, persistent=False)
        self._show()
        self._present()
        self.train(source.training)
        if registered is not None and self._count:
            self._bind_alone()  # a compiled graph cannot

    @classmethod
    def of(
        cls, pack: Pack, name: str, source: Any, registered: Registered | None = None, *, plain: str = "", norm: Any = None
    ) -> PackedLinear:
        """The layer that serves ``source``, with what follows it, by the pack's op ``name``, and alone by ``plain``."""
        fold = None if norm is None else Fold(norm)
        weight, bias = source.weight.detach(), None if source.bias is None else source.bias.detach()
        if fold is not None:
            weight, bias = fold.folded(weight, bias, groups_of(source))
        made = pack.op(name).bind(weight.to(source.weight.dtype).contiguous(), bias)
        return cls(made, source, registered, plain=plain, fold=fold)

    @property
    def weight(self) -> torch.Tensor:
        """The weight, of the layer's own shape, unpacked when its numbers are read; see ``PackedWeight``."""
        return self._known("weight") if torch.compiler.is_compiling() else self._shown("weight", self._shape)

    @property
    def bias(self) -> torch.Tensor | None:
        """The bias ``(out_features,)``, or None."""
        if not self._biased:
            return None
        return self._known("bias") if torch.compiler.is_compiling() else self._shown("bias", self._bias_shape())

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("weight", "bias") and isinstance(value, torch.Tensor):
            self._refuse_other(name, value.numbers() if isinstance(value, PackedWeight) else value)
            parameter = value.shared() if isinstance(value, PackedWeight) else value
            value = parameter.numbers() if isinstance(parameter, PackedWeight) else parameter
            self._retire(name)
            self.untie(name)
            self.serve_other(name, value)
            self.tie(name, parameter)
        elif name in ("weight", "bias"):
            raise TypeError(
                f"{self._linear.name}: {name} = {type(value).__name__}; a served layer takes a tensor there: "
                "change the layer first, then swap"
            )
        else:
            super().__setattr__(name, value)

    def register_parameter(self, name: str, param: Any) -> None:
        """As torch does; UsageError where a served weight is to be one of another name, as pruning does."""
        if isinstance(param, PackedWeight):
            raise no_other_weight(self._linear.name, name)
        super().register_parameter(name, param)

    def _shown(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor that shows weight or bias: the same one while anybody holds it."""
        if name in self._ties:
            return self._ties[name].parameter
        for reference in self._handles:
            handle = reference()
            if handle is not None and handle.shows(name, self.dtype):
                return handle
        return PackedWeight.of(self, name, shape)

    def handed_out(self, tensor: PackedWeight) -> None:
        """Note a tensor that shows the layer's numbers until another is assigned."""
        self._handles = [*(handle for handle in self._handles if handle() is not None), weakref.ref(tensor)]

    def _retire(self, name: str) -> None:
        """Tensors that were handed out keep the numbers that they show."""
        handles = [handle for reference in self._handles if (handle := reference()) is not None and handle.name_of() == name]
        if handles:
            with torch.inference_mode(False):
                before, self._numbers[name] = self.numbers(name), self.numbers(name).clone()
            for handle in handles:
                handle.retire(before)

    def numbers(self, name: str) -> torch.Tensor:
        """Weight or bias as a plain tensor of the layer's type, kept from the first call on."""
        tensor = self._numbers.get(name)
        if tensor is None:
            with torch.inference_mode(False):
                tensor = self._numbers[name] = self._unpacked(name).to(self.dtype, copy=True)
        return tensor

    def serve_other(self, name: str, value: torch.Tensor) -> None:
        """Serve another weight or bias; a later change of ``value`` does not show. ValueError for another shape."""
        self._refuse_other(name, value)
        numbers = {"weight": self.numbers("weight"), "bias": self.numbers("bias") if self._biased else None}
        self._replace(**{**numbers, name: value})

    def _refuse_other(self, name: str, value: torch.Tensor) -> None:
        shape = self._shape if name == "weight" else self._bias_shape()
        refuse_tangent(self._linear.name, value)
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise ValueError(f"{self._linear.name}: {name} comes from torch.func; a pack only infers, with plain weights")
        if tuple(value.shape) != shape or (name == "bias" and not self._biased):
            raise ValueError(
                f"{self._linear.name}: {name} has shape {tuple(value.shape)}; a served layer has "
                f"{shape if name == 'weight' or self._biased else 'none'}: change the layer first, then swap"
            )

    def written(self) -> None:
        """Serve changes of the tensors that ``numbers`` gave, or of shared parameters."""
        for tie in self._ties.values():
            self._numbers[tie.name] = tie.parameter.detach().to(self.dtype)
        self._replace(self.numbers("weight"), self.numbers("bias") if self._biased else None)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` times the weight, plus the bias."""
        if self._ties:
            self._follow_shared()
        if not self._count and self.dtype is not _FLOAT64:
            return self._typed(input)
        alone = None if self.dtype is torch.float64 else self._bind_alone()
        if alone is not None:
            return alone._typed(input)
        self._check(input)
        result: torch.Tensor = self._by_torch(input, *map(self._known, self.tensors()))
        return result

    def with_followers(self, input: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
        """The layer and the modules that ``followers`` counted."""
        self._check_call(input, *more, **named)
        return self._typed(input)

    def followers(self, modules: Sequence[Any], index: int) -> int:
        """Number of the modules behind ``modules[index]``, which this is, that its op computes as they are now."""
        if self._ties:
            self._follow_shared()
        if not self._count or index + self._count >= len(modules) or not is_plain(self) or self.dtype is torch.float64:
            return 0
        behind, fold = modules[index + 1 : index + 1 + self._count], self._fold
        if fold is not None and (behind[0] is not fold.norm or not fold.usable()):
            return 0
        if self._step and step_of(behind[-1]) != self._step:
            return 0
        if fold is not None and torch.compiler.is_compiling():
            if self._operator is None:  # which folds anew in a compiled graph; without it the graph breaks
                self._refresh_apart()
        elif fold is not None and not torch._C._len_torch_dispatch_stack():
            self.refresh()
        return self._count

    def refresh(self) -> bool:
        """Fold the norm behind the layer anew where its numbers are others; whether they were."""
        fold = self._fold
        if fold is None or fold.current():
            return False
        with fold.lock, torch.inference_mode(False), torch.no_grad():
            bias = self.numbers("bias") if self._biased else None
            weight, row = fold.folded(self.numbers("weight"), bias, groups_of(self))
            self._linear.rebind(weight.to(self._own).contiguous(), row)
            self._show()
        return True

    @torch._disable_dynamo  # type: ignore[untyped-decorator]  # imports dynamo, two seconds, in a compiled model alone
    def _refresh_apart(self) -> None:
        self.refresh()

    def _typed(self, x: torch.Tensor) -> torch.Tensor:
        own = self._own
        if type(x) is _TENSOR and x.dtype is own and self.dtype is own and not is_watched():
            try:  # the usual call; what is wrong with another is said below
                return self._computed(x)
            except _UNUSUAL:
                pass
        self._check(x)
        kind = x.dtype
        if kind is own and self.dtype is kind and not torch.is_autocast_enabled("cpu"):
            return self._product(x)
        if torch.is_autocast_enabled("cpu") and kind in (torch.float32, torch.bfloat16, torch.float16):
            kind = torch.get_autocast_dtype("cpu")
        elif kind is not self.dtype:
            raise TypeError(f"{self._linear.name}: x has dtype {kind}; expected {self.dtype}, as the layer has")
        with torch.autocast("cpu", enabled=False):
            return self._product(x.to(self._own)).to(kind)

    def _check(self, x: Any) -> None:
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
            result = x.layout if isinstance(x, torch.Tensor) else type(x).__name__
            raise TypeError(f"{self._linear.name}: x is {result}; expected a strided torch.Tensor")

    def _check_call(self, input: Any) -> None:
        """TypeError or ValueError for arguments that the layer alone would not take."""

    def _through_operator(self, x: torch.Tensor) -> bool:
        """True if a graph is being recorded, which needs the registered operator; UsageError where there is none."""
        if torch.compiler.is_compiling():
            recorded = torch.compiler.is_exporting()
        else:
            if forward_ad._current_level >= 0:
                refuse_tangent(self._linear.name, x)
            recorded = is_recorded(x)
            if not recorded:
                return False
        if recorded and self._operator is None:
            refuse_recording(self._linear.name)
        return self._operator is not None  # of a compiled model without one the graph breaks here

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        if self._through_operator(x):
            more = () if self.row is None and self._fused else (self.row,)
            result: torch.Tensor = self._operator(x, self.packed, *more)  # type: ignore[misc]
            return result
        return self._computed(x)

    def _computed(self, x: torch.Tensor) -> torch.Tensor:
        """Result of the library's own call, past torch."""
        if not x.is_contiguous() and (x.stride(-1) != 1 or x.dim() > 2):
            x = x.contiguous()
        output: torch.Tensor = self._linear(x)
        return output

    def _by_torch(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self._kind is torch.nn.Linear:
            return torch.nn.functional.linear(x, weight, bias)
        return x @ weight if bias is None else x @ weight + bias  # stored the other way, (in, out)

    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def _unpack_known(self, name: str) -> torch.Tensor:
        return self.numbers(name)

    def _known(self, name: str) -> torch.Tensor:
        tensor = self._numbers.get(name)
        return self._unpack_known(name) if tensor is None else tensor

    def _bind_alone(self) -> PackedLinear | None:
        """Linear that serves the layer alone; None where the pack lacks its op. Bound when the layer is first called so."""
        if self._alone is None and not torch.compiler.is_compiling():
            pack: Pack = self._linear.owner
            if self._plain_name in pack.ops:
                with torch.inference_mode(False), torch.no_grad():
                    bias = self._unpacked("bias").float() if self._biased else None
                    bound = pack.op(self._plain_name).bind(self._unpacked("weight").to(self._own).contiguous(), bias)
                    served = type(self)(bound, self, self._registered)
                served.dtype = self.dtype
                self.__dict__["_alone"] = served
        layer: PackedLinear | None = self._alone
        return layer

    def extra_repr(self) -> str:
        """Text that print(model) shows."""
        k, n = reversed(self._shape) if self._kind is torch.nn.Linear else self._shape
        return f"in_features={k}, out_features={n}, op={self._linear.name}"

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedLinear:
        copy = self.__class__.__new__(self.__class__)
        memo[id(self)] = copy
        shared: dict[str, Any] = {"_linear": self._linear.twin(), "_alone": None, "_registered": self._registered}
        parameters: Any = self._parameters
        shared |= {
            "_parameters": parameters.moved(copy, memo),
            "_operator": self._operator, "_fold": None, "_buffers": dict(self._buffers), "_numbers": {}, "_former": None,
            "_handles": [], "_ties": {}, "graded": {},
        }  # fmt: skip
        copy.__dict__.update(
            {key: shared[key] if key in shared else deepcopy(item, memo) for key, item in self.__dict__.items()}
        )
        if self._fold is not None:
            copy.__dict__["_numbers"] = {key: number.clone() for key, number in self._numbers.items()}
            copy.__dict__["_fold"] = self._fold.moved(deepcopy(self._fold.norm, memo))
        for tie in self._ties.values():
            copy.tie(tie.name, deepcopy(tie.parameter, memo))
        copy._show_types()
        if self._alone is not None:
            copy.__dict__["_alone"] = deepcopy(self._alone)
        if copy._fold is not None and copy._registered is not None:
            copy._fold.forget()  # its packed weight is apart: operators know a folded layer by that
            copy.refresh()
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        bias = self._unpacked("bias").to(self.dtype) if self._biased else None
        state = {key: self.__dict__[key] for key in (*self._named, *HOOKS) if key in self.__dict__}
        return plain_layer, (self._kind, self._unpacked("weight").to(self.dtype), bias, self.training), state

    def __copy__(self) -> PackedLinear:
        return self.__deepcopy__({})

    def _bias_shape(self) -> tuple[int, ...]:
        return (self._shape[0 if self._kind is torch.nn.Linear else 1],)

    def _unpacked(self, name: str) -> torch.Tensor:
        """Weight or bias of the layer alone, in the type that is served, or as it was handed out and perhaps changed."""
        if name in self._numbers:
            return self._numbers[name]
        if name == "weight":
            return tensor_of(self._linear.weight(), self._own)
        row: torch.Tensor = self.row
        return row.clone()

    def _present(self) -> None:
        """One parameter without elements: of the layer's type, on its device."""
        nothing = torch.empty(0, dtype=self.dtype)
        self.register_parameter(PRESENCE, torch.nn.Parameter(nothing, requires_grad=False))
        self._show_types()

    def _show_types(self) -> None:
        parameters: Any = self._parameters
        parameters.typed = {name: PackedWeight.of(self, name, shape, types=True) for name, shape in self.tensors().items()}

    def _show(self) -> None:
        """Buffers that share the bound linear's memory: what the registered operator takes in a compiled model."""
        former, registered = self._buffers["packed"], self._registered
        self.packed = packed_tensor(self._linear)
        if registered is not None and registered.pack is not self._linear.owner:  # after a hand-over: operators stay the old
            self.packed = registered.pack_weight(self._linear.name, tensor_of(self._linear.weight(), self._own))
        bias = self._linear.bound.bias
        if self._fused:  # its epilogue is a bias, where there is one, and an activation
            bias = next(iter(self._linear.bound.constants.values()), None)
        self.row = None if bias is None else torch.from_dlpack(bias)
        if registered is not None and self._fold is not None:
            if self._former is not None:
                registered.folded.pop(self._former.data_ptr(), None)
            self.__dict__["_former"] = former  # a compiled graph under way may pass it: its address is no other's meanwhile
            registered.folded[self.packed.data_ptr()] = self

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PackedLinear:
        """``.to()``, ``.bfloat16()`` and the like: results change their type, the packed weight stays what it is."""
        requested = fn(torch.empty(0, dtype=self.dtype))
        if requested.device.type != "cpu":
            raise ValueError(
                f"{self._linear.name}: asked to move to {requested.device}; a layer served from a CPU pack stays on the "
                "CPU: move the model first, then swap"
            )
        if self._own is not torch.float32 and requested.dtype is not self._own:
            raise TypeError(
                f"{self._linear.name}: asked for {requested.dtype}; a layer served in {self._own} computes in that type: "
                "change the model's type first, then swap"
            )
        if requested.dtype is not self.dtype:
            halves = {name: self.numbers(name) for name in self.tensors()} if self.dtype in _HALVES else {}
            self.dtype = requested.dtype
            # Of a fold they are the only ones: rounded, as torch rounds them.
            self._numbers = {key: number.to(requested.dtype) for key, number in self._numbers.items()} if self._fold else {}
            for tie in self._ties.values():  # whichever of its modules comes first
                tie.parameter.data = tie.parameter.detach().to(self.dtype)
            if halves and self._own is torch.float32:  # which hold what was rounded to them
                self._replace(**{"bias": None, **{name: number.to(self.dtype) for name, number in halves.items()}})
            self._present()
            if self._alone is not None:
                self._alone.dtype = requested.dtype
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name in self.tensors():  # what is written into them is served, as torch's own share memory with the model
            tensor = getattr(self, name)
            destination[f"{prefix}{name}"] = tensor if keep_vars or isinstance(tensor, PackedWeight) else tensor.detach()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """As ``nn.Linear`` does; both are packed anew, and later calls see both or neither."""
        inputs = checked_state(state_dict, prefix, self.tensors(), strict, missing_keys, unexpected_keys, error_msgs)
        if inputs:
            whole = {name: inputs[name] if name in inputs else self._unpacked(name) for name in self.tensors()}
            self._replace(whole["weight"], whole.get("bias"))

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shapes of weight and, if there is one, bias."""
        return {"weight": self._shape, "bias": self._bias_shape()} if self._biased else {"weight": self._shape}

    def _replace(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Serve these from now on; tensors that were handed out show them."""
        with torch.inference_mode(False), torch.no_grad():
            weight, bias = weight.detach().to("cpu"), None if bias is None else bias.detach().to("cpu")
            for name, value in (("weight", weight), ("bias", bias)):
                selected = self._numbers.get(name)
                if selected is None or value is None:
                    continue
                if (selected.data_ptr(), selected.stride()) != (value.data_ptr(), value.stride()):
                    selected.copy_(value.clone())  # it may be a turned view of the same
            if self._fold is not None:
                self._fold.forget()  # the norm may change, too; the next call folds both
            else:
                self._linear.rebind(weight.to(self._own).contiguous(), None if bias is None else bias.float())
                self._show()
            for tie in self._ties.values():
                tie.packed()
            self.__dict__["_alone"] = None
            if self._registered is not None and self._count:
                self._bind_alone()


@cache
def _served_as(kind: type[PackedLinear], source: type) -> type[PackedLinear]:
    """The class of served layers that stand for layers of ``source``: models ask for these by ``isinstance``."""
    return type(kind.__name__, (kind, source), {"__module__": kind.__module__, "__doc__": kind.__doc__})
