"""The ceilings of this GPU, measured: what times are shares of."""

from __future__ import annotations

from haotuner.bundle.probe import TYPES, Probe
from haotuner.bundle.suites import Suite
from haotuner.bundle.trials import whole_units

SAMPLES = 9
MEMORY_KINDS = {"read": 0, "write": 1, "copy": 2}
# A wgmma batch is 8 x 64x256x16, 64 times an mma.sync batch of a warp: fewer rounds for the same length.
WARPGROUP_SHARE = 16


def measure_peak(what: str, probe: Probe, suite: Suite) -> list[float]:
    """Samples: TFLOP/s for ``fma``, ``tensor_*`` and ``warpgroup``, GB/s for memory, a count for ``units`` and ``subset``.

    ``subset`` goes on with half of the multiprocessors and counts those that blocks ran on.
    """
    if what == "subset":
        probe.use_subset(whole_units(int(probe.facts["units"]) / 2))
    if what in ("units", "subset"):
        return [float(probe.units_seen())]
    if what in MEMORY_KINDS:
        return probe.rates("memory", MEMORY_KINDS[what], suite.peak_bytes, samples=SAMPLES)
    if what == "fma":
        return probe.rates("fma", suite.peak_rounds, samples=SAMPLES)
    if what == "warpgroup":
        return probe.rates("warpgroup", max(1, suite.peak_rounds // WARPGROUP_SHARE), samples=SAMPLES)
    return probe.rates("tensor", TYPES[what.removeprefix("tensor_")], suite.peak_rounds, samples=SAMPLES)
