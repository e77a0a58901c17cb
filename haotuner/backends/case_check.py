"""The check of a timed kernel: a call's results and what lies around them, as a refusal or as the largest error."""

from __future__ import annotations

from collections.abc import Mapping

from haotuner.isolate.answers import Refusal
from haotuner.spec.call_case import CallCase
from haotuner.spec.numerics import Guarded


def largest_error(case: CallCase, outputs: Mapping[str, Guarded], where: str = "") -> float:
    """The largest error of a call as a share of the tolerance; Refusal for wrong numbers and writes outside an output.

    ``where``: what the message begins with, the shape where nothing is said.
    """
    verdict, where = case.verdict({name: output.inner for name, output in outputs.items()}), where or str(case.shape)
    if verdict.wrong:
        raise Refusal("verify", "wrong", f"{where}: {verdict}")
    if any(output.touched() for output in outputs.values()):
        raise Refusal("verify", "out_of_bounds", f"{where}: wrote outside the output")
    return verdict.worst
