"""The page docs/transfer/study.md: bars, then what ``haotuner transfer report`` writes, plots and tests of each family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.bench.markdown import markdown_table
from tests.bench.transfer_study.ablation import SEEDS
from tests.bench.transfer_study.bars import bars_table
from tests.bench.transfer_study.calibrate import KEYS
from tests.bench.transfer_study.objectives import SAMPLES
from tests.bench.transfer_study.report_page import Plots, family_page, header


def study_page(document: Mapping[str, Any], command: str, plots: Plots) -> str:
    """Markdown of what ``survey`` found."""
    lines = [*header(document, command), *bars_table(document)]
    for family, facts in document["families"].items():
        lines += family_page(family, facts, document["counts"], plots)
        lines += _family_tests(family, facts)
    return "\n".join(lines) + "\n"


def _family_tests(family: str, facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {family}: ablation, permutation test, funnel"
    yield ""
    yield "Ablation, zero-shot on a device that training never saw, mean over devices: what resource features add."
    yield f"Ablation and permutation test are means over {SEEDS} seeds of the forests; the funnel has none."
    yield ""
    means = facts["ablate"]["means"]
    yield from markdown_table(
        ("what the model may see", *KEYS),
        [(name, *(f"{scores[key]:.3f}" for key in KEYS)) for name, scores in means.items()],
    )
    yield "Regression of log(throughput / roofline) against LightGBM's ranking objectives, trees and features alike: learnt"
    yield f"from the other devices (program features, near ones first), or from {SAMPLES} random rows of its own."
    yield ""
    yield from markdown_table(
        ("learnt from", "objective", *KEYS),
        [
            (source, objective, *(f"{by[source][key]:.3f}" for key in KEYS))
            for source in ("device out", "own samples")
            for objective, by in facts["ablate"]["objectives"].items()
        ],
    )
    permuted = facts["permute"]
    low, high = permuted["interval"]
    yield f"Permutation test: swapping two devices' profiles costs {permuted['mean_cost']:.3f} of pairwise accuracy"
    yield f"(90 % interval {low:.3f} to {high:.3f})."
    yield ""
    yield from markdown_table(
        ("swapped", "target", "true profiles", "swapped", "cost"),
        [
            (" and ".join(s["swapped"]), s["target"], f"{s['true']:.3f}", f"{s['pairwise']:.3f}", f"{s['cost']:+.3f}")
            for s in permuted["swaps"]
        ],
    )
    yield "Funnel with the real profiles: laws, then the best by expectation; nothing measured takes part."
    yield ""
    laws = list(facts["funnel"][0]["refused"])
    yield from markdown_table(
        ("device", "measured", *(f"refused: {law}" for law in laws), "kept", "best kept / best of all"),
        [
            (
                f["device"],
                str(f["measured"]),
                *(str(f["refused"][law]) for law in laws),
                str(f["kept"]),
                f"{f['best_kept']:.3f}",
            )
            for f in facts["funnel"]
        ],
    )
