"""Model: a whole model as callers hold it, and the same under the names of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError
from haotuner.runtime.model_bound import ModelBound, Ran
from haotuner.runtime.model_handle import ModelHandle

if TYPE_CHECKING:
    from haotuner.runtime.chain import Chain
    from haotuner.runtime.chain_bound import ChainEnd
    from haotuner.runtime.native_library import NativeEnd
    from haotuner.runtime.schedule import ExecutionPlan


class Model(ModelHandle[ModelBound]):
    """A whole model: ``model.run({"x": array})`` gives outputs by name.

    Calls may run at the same time; each has memory of its own.

    It answers on when its pack is handed over, from the new pack. PackClosed once the pack that serves it was closed.
    """

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name; ``out``: arrays for them. UsageError names the input, what was expected and what was found."""
        return self.current().run(inputs, out)

    @property
    def schedule(self) -> ExecutionPlan:
        """Schedule that runs, as the pack's document says it; calls need it not."""
        return self._bound.schedule

    def ran(self, inputs: Mapping[str, Any], us: list[float]) -> Ran:
        """Steps that a request of such inputs runs, with their times out of those of all."""
        return self._bound.ran(inputs, us)

    def timed(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], list[float]]:
        """One call: its outputs, and the microseconds of each step of the schedule; 0 of steps that have nothing to do.

        UsageError as of ``run``, and for a pack that was made before steps were timed.
        """
        return self.current().timed(inputs)

    def step_times(self, inputs: Mapping[str, Any], seed: int | None = None) -> list[Ran]:
        """The model's steps with their microseconds in one call; of one in segments see ``Chain``."""
        return self.current().step_times(inputs, seed)


class Session:
    """A model under the names that ONNX Runtime uses."""

    def __init__(self, model: Model | Chain) -> None:
        self._model = model

    def __repr__(self) -> str:
        return f"<Session of {self._model!r}>"

    def run(self, names: list[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Outputs in the order of ``names``; None: all."""
        result = self._model.run(feeds)
        unknown = [name for name in names or () if name not in result]
        if unknown:
            raise UsageError(f"{self._model.name} has no output {unknown[0]!r}; it has {', '.join(result)}")
        return [result[name] for name in names or result]

    def get_providers(self) -> list[str]:
        """The device that it runs on, under the name of ONNX Runtime's provider there: wrappers of sessions ask for it."""
        return ["CPUExecutionProvider" if self._model.pack.gpu is None else "CUDAExecutionProvider"]

    def get_inputs(self) -> list[Argument]:
        """Inputs with names, shapes and types, those without a default."""
        return [Argument(operand) for operand in self._model.inputs if operand.default is None]

    def get_overridable_initializers(self) -> list[Argument]:
        """Inputs that a request may leave out: the file has a value for them."""
        return [Argument(operand) for operand in self._model.inputs if operand.default is not None]

    def get_outputs(self) -> list[Argument]:
        """Outputs with names, shapes and types."""
        return [Argument(output) for output in self._model.outputs]


class Argument:
    """``name``, ``shape`` (names of dimensions where the request decides) and ``type`` of an input or output."""

    def __init__(self, end: NativeEnd | ChainEnd) -> None:
        self.name, self.shape = end.name, list(end.shape)
        self.type = f"tensor({ {'float32': 'float', 'float64': 'double'}.get(end.dtype.name, end.dtype.name) })"

    def __repr__(self) -> str:
        return f"<{self.name} {self.type} {self.shape}>"
