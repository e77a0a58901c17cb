"""A call to judge: operands, the results that it must give, and how far each of these may be off. Needs numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.spec import numerics
from haotuner.spec.numerics import EXACTLY, Array, Guarded, Verdict
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

Seed = int | Sequence[int] | np.random.Generator  # of a generator the next numbers are taken


@dataclass(frozen=True, eq=False)
class CallCase:
    """One call of an op. ``operands``: by name, as they are stored, those of the epilogue last.

    ``whole``: they are small whole numbers, see ``numerics.bounds``. ``computed``: how, see ``numerics.computed_by``.
    """

    op: Op
    shape: Shape
    operands: Mapping[str, Array] = field(repr=False)
    whole: bool = False
    computed: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def drawn(
        op: Op,
        shape: Shape,
        seed: Seed,
        *,
        bound: Mapping[str, Array] | None = None,
        whole: bool = False,
        computed: Mapping[str, str] = EXACTLY,
    ) -> CallCase:
        """A case with drawn operands. ``bound``: those that an earlier case drew, which take the place of this one's."""
        operands = numerics.draw(op, shape, np.random.default_rng(seed), whole=whole) | dict(bound or {})
        return CallCase(op, shape, operands, whole, computed)

    @property
    def reference(self) -> NDArray[np.float64]:
        """The output in float64."""
        want: NDArray[np.float64] = self.expected[self.op.meaning.output.name][0]
        return want

    @property
    def tolerance(self) -> NDArray[np.float64] | float:
        """Largest error that each element of the output may have."""
        allowed: NDArray[np.float64] | float = self.expected[self.op.meaning.output.name][1]
        return allowed

    @cached_property
    def expected(self) -> dict[str, tuple[Any, Any]]:
        """Reference and tolerance of every operand that the call writes, by name."""
        return numerics.expected(self.op, self.operands, self.computed, whole=self.whole)

    def outputs(self, *, gaps: bool = True) -> dict[str, Guarded]:
        """Room for every operand that the call writes, by name, inside elements that it must leave alone."""
        return {
            operand.name: Guarded(self.op.operand_shape(operand, self.shape), self.op.dtype_of(operand), gaps=gaps)
            for operand in self.op.meaning.written
        }

    def verdicts(self, results: Mapping[str, Array]) -> dict[str, Verdict]:
        """Verdict of the comparison of each written operand, by name."""
        return {name: numerics.compare(results[name], *bounds) for name, bounds in self.expected.items()}

    def verdict(self, results: Mapping[str, Array]) -> Verdict:
        """The worst of all verdicts: the first wrong one, the output's before others, else that of the largest error."""
        verdicts = self.verdicts(results)
        worst = verdicts[self.op.meaning.output.name]
        for verdict in verdicts.values():
            if not worst.wrong and (verdict.wrong or verdict.worst > worst.worst):
                worst = verdict
        return worst

    def problems(self, outputs: Mapping[str, Guarded], where: str = "") -> list[str]:
        """Wrong numbers and writes outside an output, in words; of several outputs each is named.

        ``where``: what stands behind the op and its extents.
        """
        verdicts = self.verdicts({name: output.inner for name, output in outputs.items()})
        lines = []
        for name, verdict in verdicts.items():
            of = f"{self}{where} {name}" if len(verdicts) > 1 else f"{self}{where}"
            lines += [f"{of}: {verdict}"] if verdict.wrong else []
            lines += [f"{of}: wrote outside the output"] if outputs[name].touched() else []
        return lines

    def __str__(self) -> str:
        """The op and its extents, for a message."""
        return f"{self.op.name} {' '.join(f'{axis}={extent}' for axis, extent in self.shape.as_dict().items())}"
