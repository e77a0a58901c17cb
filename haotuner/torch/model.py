"""A whole model of a pack as a module."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch

from haotuner.errors import UsageError
from haotuner.runtime.pack import Pack
from haotuner.torch.op_definition import is_recorded, refuse_grad
from haotuner.torch.ops import array_of, tensor_of


class ServedModel(torch.nn.Module):  # type: ignore[misc]
    """``model(x, mask)`` or ``model(x, mask=mask)``: the tensors of a whole model of an open pack, in and out.

    Inputs come in the model's order or by name. One output is a tensor, several are a tuple in the model's order. It has no
    parameters and infers only; ``torch.compile`` calls it as it is. Copies share the pack; it cannot be pickled.
    """

    def __init__(self, pack: Pack, name: str) -> None:
        super().__init__()
        self._served = pack.model(name)
        self._inputs = tuple(operand.name for operand in self._served.inputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> ServedModel:
        copy = self.__class__.__new__(self.__class__)
        memo[id(self)] = copy
        copy.__dict__.update({k: item if k == "_served" else deepcopy(item, memo) for k, item in self.__dict__.items()})
        return copy

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self._served.name}: a served model is a part of an open pack and cannot be pickled; pickle the pack's path, "
            "and open it again with haotuner.load where the model is needed"
        )

    def __copy__(self) -> ServedModel:
        return self.__deepcopy__({})

    def extra_repr(self) -> str:
        """Text in the brackets of the module's text."""
        return repr(self._served)

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        """The outputs. UsageError names the input, what was expected and what was found; ValueError for gradients."""
        arguments = dict(zip(self._inputs, inputs, strict=False))
        if len(inputs) > len(self._inputs) or arguments.keys() & named.keys():
            raise UsageError(
                f"{self._served.name} takes {', '.join(self._inputs)}, once each; got {len(inputs)} in order and "
                f"{', '.join(named) or 'none'} by name"
            )
        arguments |= named
        refuse_grad(self._served.name, *arguments.values())
        tensors = [tensor for tensor in arguments.values() if isinstance(tensor, torch.Tensor)]
        compiling, exporting = torch.compiler.is_compiling(), torch.compiler.is_exporting()
        if exporting or (not compiling and any(map(is_recorded, tensors))):
            raise UsageError(
                f"{self._served.name}: torch records or transforms this call (torch.export, make_fx, torch.func); a "
                "served model is no operator of torch: export the model that the pack was tuned from"
            )
        outputs = tuple(self._run_apart(arguments) if compiling else self._run(arguments))
        return outputs[0] if len(outputs) == 1 else outputs

    @torch._disable_dynamo  # type: ignore[untyped-decorator]  # imports dynamo, two seconds, in a compiled model alone
    def _run_apart(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return self._run(inputs)

    def _run(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        outputs = self._served.run({name: array_of(tensor) for name, tensor in inputs.items()}).values()
        return [
            tensor if isinstance(tensor, torch.Tensor) else tensor_of(tensor, getattr(torch, tensor.dtype.name))
            for tensor in outputs
        ]
