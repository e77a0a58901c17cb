"""ModelHandle: what callers hold of a whole model. What serves it is swapped in one step when packs are handed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from haotuner.runtime.reprs import described_model

if TYPE_CHECKING:
    from haotuner.runtime.chain_bound import ChainBound
    from haotuner.runtime.model_bound import ModelBound
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
