"""Chain: a model in segments as callers hold it (chain_bound.py says what segments are)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haotuner.runtime.chain_bound import ChainBound
from haotuner.runtime.model_bound import ModelBound, Ran
from haotuner.runtime.model_handle import ModelHandle


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
