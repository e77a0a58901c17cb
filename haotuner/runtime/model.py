"""Models as callers hold them: whole or in segments, swapped in one step when packs are handed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, SupportsIndex, TypeVar

from haotuner.errors import UsageError
from haotuner.runtime.chain_bound import ChainBound
from haotuner.runtime.decoder_state import DecoderState
from haotuner.runtime.expected_us import ExpectedUs
from haotuner.runtime.model_bound import ModelBound, Ran
from haotuner.runtime.reprs import described_model

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack

B = TypeVar("B", bound="ModelBound | ChainBound")


class ModelHandle(Generic[B]):
    """Calls go to ``bound``. A call reads it once, so that it runs wholly in one pack, which lives until the call ends."""

    def __init__(self, bound: B) -> None:
        self._bound = bound
        self.owner = bound.pack  # the pack that hands it over; set by ``Pack.own``

    def __repr__(self) -> str:
        return described_model(self)

    @property
    def bound(self) -> B:
        """Model that serves this handle now."""
        return self._bound

    def serve(self, bound: B) -> None:
        """Serve later calls from ``bound``; calls that run now finish as they began."""
        self._bound = bound

    def close(self) -> None:
        """Nothing: later calls see that their pack is closed."""

    def current(self) -> B:
        """Model that serves a call that begins now; PackClosed where its pack was closed and not handed over."""
        bound = self._bound
        while not bound.pack.is_open:
            if bound is self._bound:
                bound.pack.library()  # raises
            bound = self._bound  # handed over meanwhile
        return bound

    @property
    def pack(self) -> Pack:
        """The pack that serves it now."""
        return self._bound.pack

    @property
    def name(self) -> str:
        """Name in the pack: that of the file that it was made of."""
        return self._bound.name

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions of a request."""
        return self._bound.dims

    @property
    def inputs(self) -> Sequence[Any]:
        """Inputs in order: ``name``, ``dtype`` and ``shape`` of each."""
        return self._bound.inputs

    @property
    def outputs(self) -> Sequence[Any]:
        """Outputs, as ``inputs``."""
        return self._bound.outputs

    @property
    def document(self) -> Any:
        """The pack's document of the model."""
        return self._bound.document

    def memory_bytes(self, **dims: int) -> int:
        """Bytes of working memory of a call with these dimensions, known before it runs; its arrays are the caller's."""
        return self._bound.memory_bytes(**dims)

    def expected_us(self, **dims: int) -> ExpectedUs:
        """``low``, ``expected`` and ``high`` microseconds of a call with these dimensions, by the times that the pack holds.

        Nothing is run: a scheduler may ask for every request. The times are those of the host that the pack was tuned on,
        of the thread count nearest to the pack's; beyond the largest size that was tuned they grow in proportion.
        UsageError for other dimensions, for a model whose sizes depend on data, and for packs that say no times.
        """
        return self._bound.expected_us(dims)

    def stats(self) -> dict[str, int]:
        """Calls and memory since the model was opened in the pack that serves it now; see ``ModelBound.stats``."""
        return self._bound.stats()

    def trim(self) -> None:
        """Give back the working memory that no call uses now."""
        self._bound.trim()


def difference_of_ends(old: ModelBound | ChainBound, new: ModelBound | ChainBound) -> str:
    """Differences of the inputs and outputs of two models, in words; empty where a caller cannot tell them apart."""
    for kind, before, after in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
        was, now = (
            [f"{end.name} {end.dtype} ({', '.join(map(str, end.shape))})" for end in ends] for ends in (before, after)
        )
        if was != now:
            return f"its {kind}s are {'; '.join(now) or 'none'}, not {'; '.join(was) or 'none'}"
    return ""


class Chain(ModelHandle[ChainBound]):
    """Called as a ``Model``. Dimensions of the data are known behind the segment that tells them."""

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, seed: int | None = None
    ) -> dict[str, Any]:
        """Outputs by name; ``out``: arrays for them. ``seed``: of random numbers, which otherwise differ each time.

        UsageError names the input, what was expected and what was found, or the size that the data make.
        """
        return self.current().run(inputs, out, seed)

    @property
    def segments(self) -> Mapping[str, ModelBound]:
        """The models that it calls, by name: of the pack that serves it now, and not handed over by themselves."""
        return self._bound.segments

    @property
    def always(self) -> list[str]:
        """Names of the segments that every call runs, in no branch."""
        return self._bound.always

    def step_times(self, inputs: Mapping[str, Any], seed: int | None = None) -> list[Ran]:
        """Of each segment, in the order they ran, its steps and their microseconds in one call: of all turns together."""
        return self.current().step_times(inputs, seed)


if TYPE_CHECKING:
    pass
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

    def state(self, max_length: SupportsIndex | None = None, **dims: int) -> DecoderState:
        """A sequence of calls whose keys and values lie in buffers: ``state.run`` takes no past and gives no present.

        ``max_length``: tokens that it may have at most, for which memory is taken at once. None: as many as the model was
        tuned for, and twice as many whenever that is not enough. ``dims``: of caches, where no other input has them.
        UsageError of a model without caches.
        """
        return DecoderState(self, max_length, dims)

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
