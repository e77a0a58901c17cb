"""A model on the command line of `haotuner tune`: what it is made of, before and after tuning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haotuner.cli.output import tell
from haotuner.errors import UsageError
from haotuner.trace import Arrivals
from haotuner.words.op import Op

if TYPE_CHECKING:
    from haotuner.orchestrate.tasks import AskedModel
    from haotuner.producing import Report


@dataclass(frozen=True, slots=True)
class Asked:
    """A model with the ops to tune for it and their traffic."""

    model: AskedModel
    ops: tuple[Op, ...]
    arrivals: Arrivals

    def table_before(self) -> str:
        """What is about to be tuned."""
        steps = self._steps()
        return f", {steps['Product']} products in {len(self.ops)} ops, {steps['Loops']} groups of the rest"

    def table(self, report: Report) -> str:
        """What the model runs, in words."""
        steps, groups = self._steps(), len(self.model.written.functions)
        return (
            f"\nmodel {self.model.written.name}: {sum(steps.values())} steps; {steps['Product']} by {len(self.ops)} "
            f"tuned ops, {steps['Loops']} by plain loops ({groups} different ones); "
            f"{len(self.model.written.weights):,} bytes of weights\n{self._orchestration()}"
        )

    def document(self, report: Report) -> Mapping[str, Any]:
        """The JSON form."""
        graph, uses, steps, told = self.model.graph, self.model.uses, self._steps(), self.model.told
        seconds = {row["name"]: row["seconds"] for row in report.document["ops"]}
        return {
            "name": self.model.written.name,
            "inputs": {name: str(graph.types[name]) for name in graph.inputs},
            "outputs": {name: str(graph.types[name]) for name in graph.outputs},
            "dims": {name: str(span) for name, span in self.model.spans.items()},
            "tasks": [
                {"name": op.name, "weight": uses[op.name], "steps": uses[op.name], "seconds": seconds.get(op.name)}
                for op in self.ops
            ],
            "steps": sum(steps.values()),
            "plain_loops": steps["Loops"],
            "orchestration": {
                "windows": told.windows,
                "candidates": told.candidates,
                "measured": 0,
                "status": told.status,
                "bound": told.bound_us,
                "greedy_us": told.greedy_us,
                "chosen_us": told.chosen_us,
            },
        }

    def _orchestration(self) -> str:
        """How the groups were chosen."""
        told = self.model.told
        return (
            f"groups: {told.status} of {told.candidates} candidates in {told.windows} windows, {told.chosen_us:,.0f} us by "
            f"their prices (no plan of them under {told.bound_us:,.0f}); greedily {told.greedy_us:,.0f}"
        )

    def _steps(self) -> Counter[str]:
        """Steps by kind; a tensor that is another one in memory is no step."""
        found = Counter(type(one).__name__ for one in self.model.steps)
        del found["Alias"]
        return found


def read_model(path: Path, shapes: str, *, quiet: bool) -> Asked:
    """The model of a file. UsageError says what in it, or in --shapes, is wrong."""
    if shapes == "dynamic":
        raise UsageError(f"say with --shapes how large {path.name}'s dimensions may be, for example batch=1..8;seq=1..512")
    from haotuner.orchestrate.tasks import arrivals_of_model, ops_of
    from haotuner.whole_model import model_of

    model = model_of(path, shapes)
    asked = Asked(model, ops_of([model]), arrivals_of_model(model, shapes))
    if not quiet:
        tell(f"{path.name}: {len(model.graph.nodes)} primitives{asked.table_before()}")
    return asked
