"""Shipped trees: the forests of one device that ``transfer/models`` holds, and what ``tune`` would start from with them."""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.cost.features import NAMES
from haotuner.cost.forest import Forest, Settings
from haotuner.spec.device import Device
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.similarity import FARTHEST, priors_at, start_distance
from haotuner.transfer.warm_start import Blend, Ranks, Remembered

# What travels between instruction sets: no widths in elements (an AVX-512 tile has twice those of AVX2), no fill of caches
# that all of them share, no analytic time. Pairwise accuracy AVX2 to AVX-512 rose from 0.62 to 0.70, back from 0.69 to 0.71.
NOT_SHIPPED = {
    "tile_cols_log2", "wave_cols_log2", "vector_log2", "vector_cols_log2", "tile_intensity_log2", "far_fill_log2",
    "l1_fill_log2", "l2_fill_log2", "near_pressure_log2", "mid_pressure_log2", "far_balance_log2", "step_efficiency",
    "expected_log",
}  # fmt: skip
# Trees learn what the analysis misses (slope 1), so what it knows of another instruction set's registers and caches is in
# the start. Pairwise accuracy and best@1 on an op not fitted to, AVX2 to AVX-512 and back: Zen 4 0.66, 0.93 and 0.70, 0.87
# without, 0.71, 0.95 and 0.79, 0.93 with; Zen 5 0.68, 0.87 and 0.74, 0.90 without, 0.73, 0.90 and 0.76, 0.90 with.
SHIPPED_TREES = Settings(
    trees=150, feature_share=0.5, slope=1.0, columns=tuple(name for name in NAMES if name not in NOT_SHIPPED)
)


def fit_shipped(table: DeviceTable, seed: int = 0) -> Forest:
    """A model of one device for the start of searches on others, as they ship in ``transfer/models``."""
    return Forest(seed=seed, settings=SHIPPED_TREES).fit(table.frame, table.labels)


def fit_start(tables: Sequence[DeviceTable], target: Device) -> Ranks | None:
    """What ``tune`` would start from on a target if models of these sources shipped; None: from cold, none is near."""
    distances = {table.device.id: start_distance(table.device, target) for table in tables}
    near = [table for table in tables if distances[table.device.id] <= FARTHEST]
    if not near:
        return None
    blend = Blend([fit_shipped(table) for table in near], priors_at([distances[table.device.id] for table in near]))
    return Remembered(blend)
