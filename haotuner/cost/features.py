"""Features: a row of numbers for each (micro-kernel, shape) on a device, and the columns that saved models use.

A tree cannot extrapolate, so a number that grows with the device (bytes of cache, registers) is divided by what
the device has: half-full is half-full everywhere, and a model learnt on one device means something on the next.

Columns of saved models: which a model uses, in which version, and whether this haotuner still computes them so.

A model is usable as long as the columns it uses are computed by the same formulas, whatever else is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd

from haotuner.cost.families import Named, demand
from haotuner.cost.machine import Machine, machine
from haotuner.cost.roofline import (
    Flow,
    code_fill,
    exposed_us,
    flow_of,
    lanes_of_wave,
    least_us,
    resident_tiles,
    roofline_us,
    spilled_registers,
    start_cycles,
    step_cycles,
    steps_of,
    tile_count,
    worked_us,
)
from haotuner.spec.demand import Column, CpuStream, Demand, MatmulTile, Problem, Ring, Staging
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

# Of models saved before columns had versions of their own: those of this one can be read. It is never raised again.
FEATURES_VERSION = 7
Group = Literal["matmul", "staging", "stream", "ring"]  # of a demand's columns: those that a family may leave out
Part = TypeVar("Part")


class View:
    """A demand on a machine with what several features share, computed once."""

    def __init__(self, device: Device, demand: Demand, least: Column | None) -> None:
        self.d = demand
        self.m: Machine = machine(device)
        self.work, self.tiles = demand.work, demand.tiles
        self.resident, self.limiter = resident_tiles(demand, self.m)
        self.count = tile_count(demand)
        self.waves = self.count / (self.m.units * self.resident)
        self.spills = spilled_registers(demand, self.m)
        self.steps = steps_of(demand, self.m)
        self.step = step_cycles(demand, self.m, self.resident)
        self.start = start_cycles(demand, self.m)
        self.exposed_us = exposed_us(demand, self.m)
        self.expected_us = worked_us(demand, self.m) + self.exposed_us
        self.least_us = np.maximum(least_us(device, demand) if least is None else least, 1e-9)
        self.flops = np.sum(list(demand.work.flops.values()), axis=0)

    @property
    def tile(self) -> MatmulTile:
        """The columns of a product, asked only by features of that group."""
        return _there(self.d.matmul)

    @property
    def staging(self) -> Staging:
        """Staging of the operands, likewise."""
        return _there(self.d.staging)

    @property
    def stream(self) -> CpuStream:
        """The stream of an operand, likewise."""
        return _there(self.d.stream)

    @property
    def ring(self) -> Ring:
        """Stages ahead, likewise."""
        return _there(self.d.ring)

    @property
    def flow(self) -> Flow:
        """Flow of tiles with a ring, likewise."""
        return flow_of(self.d, self.m, self.resident)

    @property
    def flops_per_step(self) -> Column:
        """Of a product's tile."""
        return 2.0 * self.tile.tile_rows * self.tile.tile_cols


def _there(part: Part | None) -> Part:
    if part is None:
        raise ValueError("a feature reads columns of a group that it does not name")
    return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One column of the frame: its formula in words, the closed range it lies in, and how it is computed.

    Raise ``version`` whenever ``of`` gives other numbers: saved models that use the column are passed over from then on. A
    new column needs no thought of them. A column of a ``group`` is NaN where a family's demand lacks the group.
    """

    name: str
    formula: str
    low: float
    high: float
    of: Callable[[View], Column]
    resource: bool = True  # False: known from program and shape (two of a GPU's also hang on the width of a wave)
    group: Group | None = None
    version: int = 1


def _log2(values: Column | float) -> Column:
    return np.asarray(np.log2(np.maximum(values, 2.0**-40)), dtype=np.float64)


def _ceil_share(value: Column, step: Column) -> Column:
    return np.asarray(value / (np.ceil(value / step) * step), dtype=np.float64)


def _fma_cycles(v: View) -> Column:
    """Cycles of the multiply-adds of one step of a tile."""
    return np.asarray(v.tiles.waves * v.tile.fmas / v.m.pipes + v.tile.tensor_fmas / v.m.tensor_fmas, dtype=np.float64)


def _peak_cycles(v: View) -> Column:
    """Cycles that the flops of a step of all resident tiles take at the peak of the units that do them."""
    flops = v.resident * v.flops_per_step / v.tile.rate
    return np.where(v.tile.tensor_fmas > 0, flops / (2.0 * v.m.tensor_fmas), flops / (2.0 * v.m.wave_width * v.m.pipes))


def _all(v: View, value: float) -> Column:
    return np.full_like(v.count, float(value))


FEATURES: tuple[Feature, ...] = (
    # the program and the shape
    Feature(name="tile_rows_log2", formula="log2 of output rows of a tile", low=0, high=20, resource=False,
            group="matmul", of=lambda v: _log2(v.tile.tile_rows)),
    Feature(name="tile_cols_log2", formula="log2 of output columns of a tile", low=0, high=20, resource=False,
            group="matmul", of=lambda v: _log2(v.tile.tile_cols)),
    Feature(name="wave_rows_log2", formula="log2 of output rows one thread holds", low=0, high=20, resource=False,
            group="matmul", of=lambda v: _log2(v.tile.wave_rows)),
    Feature(name="wave_cols_log2", formula="log2 of output columns one thread holds", low=0, high=20, resource=False,
            group="matmul", of=lambda v: _log2(v.tile.wave_cols)),
    Feature(name="threads_log2", formula="log2 of threads of a tile", low=0, high=12, resource=False,
            of=lambda v: _log2(v.tiles.threads)),
    Feature(name="vector_log2", formula="log2 of elements one load moves", low=0, high=8, resource=False,
            of=lambda v: _log2(v.tiles.vector)),
    Feature(name="unroll_log2", formula="log2 of unrolled steps", low=0, high=12, resource=False,
            group="matmul", of=lambda v: _log2(v.tile.unroll)),
    Feature(name="streams", formula="address streams read in parallel", low=0, high=4096, resource=False,
            group="matmul", of=lambda v: v.tile.streams),
    Feature(name="flags", formula="family switches as an integer", low=0, high=4096, resource=False,
            group="matmul", of=lambda v: v.tile.flags),
    Feature(name="ahead_lines_log2", formula="log2 of 1 + cache lines between use and fetch by instruction", low=0, high=31,
            resource=False, group="stream", of=lambda v: _log2(1.0 + v.stream.ahead_lines)),
    Feature(name="fetched", formula="share of its own or the next panel that a tile fetches by instruction", low=0, high=1,
            resource=False, group="stream", of=lambda v: v.stream.fetched),
    Feature(name="rows_padding", formula="rows / (rows rounded up to tiles)", low=0, high=1, resource=False,
            group="matmul", of=lambda v: _ceil_share(v.tile.rows, v.tile.tile_rows)),
    Feature(name="cols_padding", formula="columns / columns computed (rounded up to tiles)", low=0, high=1, resource=False,
            group="matmul", of=lambda v: v.tile.cols / v.tile.computed_cols),
    Feature(name="rows_exact", formula="1 where whole tiles cover the rows (no bounds check), else 0", low=0, high=1,
            resource=False, group="matmul", of=lambda v: (np.mod(v.tile.rows, v.tile.tile_rows) == 0).astype(np.float64)),
    Feature(name="cols_exact", formula="1 where whole tiles cover the columns, else 0", low=0, high=1, resource=False,
            group="matmul", of=lambda v: (np.mod(v.tile.cols, v.tile.tile_cols) == 0).astype(np.float64)),
    Feature(name="staged_rows", formula="1 where the rows' operand is staged in shared memory", low=0, high=1,
            resource=False, group="staging", of=lambda v: v.staging.rows),
    Feature(name="staged_cols", formula="1 where the columns' operand is staged (CPU: packed)", low=0, high=1,
            resource=False, group="staging", of=lambda v: v.staging.cols),
    Feature(name="staging_rows_log2", formula="log2 of threads side by side that stage the rows' operand", low=0, high=12,
            resource=False, group="staging", of=lambda v: _log2(v.staging.row_threads)),
    Feature(name="staging_cols_log2", formula="log2 of threads side by side that stage the columns' operand", low=0,
            high=12, resource=False, group="staging", of=lambda v: _log2(v.staging.col_threads)),
    Feature(name="vector_cols_log2", formula="log2 of elements one load of the columns' operand moves", low=0, high=8,
            resource=False, group="staging", of=lambda v: _log2(v.staging.vector_cols)),
    Feature(name="row_tiles_log2", formula="log2 of tiles along the rows", low=0, high=31, resource=False,
            group="matmul", of=lambda v: _log2(np.ceil(v.tile.rows / v.tile.tile_rows))),
    Feature(name="depth_log2", formula="log2 of steps", low=0, high=31, resource=False, group="matmul",
            of=lambda v: _log2(v.tile.depth)),
    Feature(name="depth_blocks_log2", formula="log2 of staged blocks of steps", low=0, high=31, resource=False,
            group="matmul", of=lambda v: _log2(np.ceil(v.tile.depth / v.tile.depth_block))),
    Feature(name="tile_intensity_log2", formula="log2 of flops per byte a tile takes from L1 or shared in a step", low=-20,
            high=40, resource=False, group="matmul", of=lambda v: _log2(v.flops_per_step / v.tile.near_bytes)),
    Feature(name="line_ratio", formula="useful share of each memory line", low=0, high=1, resource=False,
            group="matmul", of=lambda v: v.tile.line_ratio),
    Feature(name="bank_ways", formula="ways of the worst bank conflict", low=1, high=64, resource=False,
            group="matmul", of=lambda v: v.tile.bank_ways),
    # demand over resource, inside one unit
    Feature(name="register_fill", formula="registers of a thread / registers a thread may have", low=0, high=1e3,
            of=lambda v: v.tiles.registers / v.m.registers_per_thread),
    Feature(name="spill_ratio", formula="registers that do not fit / registers asked for", low=0, high=1,
            of=lambda v: v.spills / v.tiles.registers),
    Feature(name="shared_fill", formula="shared bytes of a tile / largest a block may have", low=0, high=1e3,
            of=lambda v: v.tiles.shared_bytes / v.m.shared_per_block_bytes),
    Feature(name="l1_fill_log2", formula="log2 of (set to be kept in L1 of resident tiles / L1)", low=-40, high=20,
            of=lambda v: _log2(v.resident * v.tiles.l1_set_bytes / v.m.l1_bytes)),
    Feature(name="l2_fill_log2", formula="log2 of (set to be kept in L2 / L2)", low=-40, high=30,
            of=lambda v: _log2(v.tiles.l2_set_bytes / v.m.l2_bytes)),
    Feature(name="far_fill_log2", formula="log2 of (bytes from main memory / last cache)", low=-40, high=40,
            of=lambda v: _log2(v.work.far_bytes / v.m.l3_bytes)),
    Feature(name="thread_fill", formula="resident threads / threads a unit may hold", low=0, high=64,
            of=lambda v: v.resident * v.tiles.waves * v.m.wave_threads / v.m.threads_per_unit),
    Feature(name="wave_use", formula="threads of a tile / lanes of its waves", low=0, high=1,
            of=lambda v: np.minimum(lanes_of_wave(v.d, v.m) / v.m.wave_width, 1.0)),
    Feature(name="resident_tiles", formula="tiles a unit holds at a time", low=1, high=64, of=lambda v: v.resident),
    Feature(name="resident_limit", formula="what limits them: 0 registers, 1 shared, 2 threads, 3 blocks", low=0, high=3,
            of=lambda v: v.limiter),
    Feature(name="ilp_log2", formula="log2 of independent multiply-adds in flight / (latency x pipes)", low=-20, high=20,
            group="matmul", of=lambda v: _log2(v.resident * v.tiles.waves * v.tile.fmas / (v.m.fma_latency * v.m.pipes))),
    Feature(name="loads_per_fma", formula="load instructions of a step / multiply-adds of a step", low=0, high=64,
            group="matmul", of=lambda v: v.tile.loads / v.tile.fmas),
    Feature(name="load_pressure_log2", formula="log2 of cycles of loads / cycles of multiply-adds", low=-20, high=20,
            group="matmul", of=lambda v: _log2((v.tile.loads / v.m.loads) / (v.tile.fmas / v.m.pipes))),
    Feature(name="near_pressure_log2", formula="log2 of cycles of L1 or shared traffic / cycles of multiply-adds", low=-40,
            high=20, group="matmul",
            of=lambda v: _log2((v.tile.near_bytes * v.tile.bank_ways / v.m.near_bytes) / _fma_cycles(v))),
    Feature(name="mid_pressure_log2", formula="log2 of cycles of L2 traffic / cycles of multiply-adds", low=-40, high=20,
            group="matmul", of=lambda v: _log2((v.tile.mid_bytes / v.m.mid_bytes) / _fma_cycles(v))),
    Feature(name="code_fill_log2", formula="log2 of bytes of the unrolled loop / instruction cache", low=-20, high=20,
            group="matmul", of=lambda v: _log2(code_fill(v.steps, v.m))),
    Feature(name="step_efficiency", formula="flops of a step at peak / cycles the analytic model gives it", low=0, high=1.5,
            group="matmul", of=lambda v: _peak_cycles(v) / v.step),
    Feature(name="start_share", formula="cycles to start a tile / cycles of the tile", low=0, high=1,
            of=lambda v: v.start / (v.start + v.steps.count * v.step)),
    # the whole device
    Feature(name="tiles_per_unit_log2", formula="log2 of tiles / units", low=-20, high=40,
            of=lambda v: _log2(v.count / v.m.units)),
    Feature(name="waves_log2", formula="log2 of tiles / (units x resident tiles)", low=-20, high=40,
            of=lambda v: _log2(v.waves)),
    Feature(name="wave_tail", formula="rounds of tiles / rounds rounded up", low=0, high=1,
            of=lambda v: v.waves / np.ceil(v.waves)),
    Feature(name="unit_tail", formula="(tiles / units) / the same rounded up", low=0, high=1,
            of=lambda v: _ceil_share(v.count, np.full_like(v.count, v.m.units))),
    Feature(name="far_balance_log2", formula="log2 of (flops per byte of main memory / machine balance)", low=-40, high=40,
            of=lambda v: _log2(v.flops / np.maximum(v.work.far_bytes, 1.0) / v.m.balance)),
    Feature(name="expected_log", formula="log of (roofline time / analytic time); over 0 where weights are in cache",
            low=-40, high=8, of=lambda v: np.log(v.least_us / v.expected_us)),
    Feature(name="exposed_share", formula="time that new pages and streams are waited for / analytic time", low=0,
            high=1, of=lambda v: v.exposed_us / v.expected_us),
    # the device itself
    Feature(name="units_log2", formula="log2 of compute units", low=0, high=16, of=lambda v: _all(v, np.log2(v.m.units))),
    Feature(name="balance_log2", formula="log2 of machine balance, flops per byte", low=-10, high=16,
            of=lambda v: _all(v, np.log2(v.m.balance))),
    Feature(name="pipes", formula="wave-wide multiply-adds a unit starts per cycle", low=0, high=64,
            of=lambda v: _all(v, v.m.pipes)),
    Feature(name="wave_width", formula="fp32 lanes of a wave", low=1, high=128, of=lambda v: _all(v, v.m.wave_width)),
    Feature(name="l1_per_pipe_log2", formula="log2 of L1 bytes / (pipes x lanes)", low=0, high=30,
            of=lambda v: _all(v, np.log2(v.m.l1_bytes / (v.m.pipes * v.m.wave_width)))),
    Feature(name="l2_per_unit_log2", formula="log2 of L2 bytes / units (CPU: of a core)", low=0, high=40,
            of=lambda v: _all(v, np.log2(v.m.l2_bytes / v.m.l2_units))),
    Feature(name="threads_limit_log2", formula="log2 of threads a unit may hold", low=0, high=16,
            of=lambda v: _all(v, np.log2(v.m.threads_per_unit))),
)  # fmt: skip
# Columns that a frame has only where a family's demand has a ring: others' frames, and models learned from them, stay as
# they were. A forest uses them if its settings name them.
RING_FEATURES: tuple[Feature, ...] = (
    Feature(name="ring_ahead_log2", formula="log2 of blocks of steps on their way while one is computed", low=0, high=12,
            resource=False, group="ring", of=lambda v: _log2(v.ring.ahead)),
    Feature(name="far_reach", formula="share of the memory's rate that bytes on their way allow", low=0, high=1,
            group="ring", of=lambda v: v.flow.reach),
    Feature(name="awake_share", formula="share of a unit's schedulers that have a wave", low=0, high=1, group="ring",
            of=lambda v: v.flow.awake),
)  # fmt: skip
NAMES: tuple[str, ...] = tuple(feature.name for feature in FEATURES)
PROGRAM_NAMES: tuple[str, ...] = tuple(feature.name for feature in FEATURES if not feature.resource)
OPTIONAL_NAMES: tuple[str, ...] = tuple(feature.name for feature in FEATURES if feature.group)  # may be NaN


def features(
    device: Device, family: Named, problem: Problem, pairs: Sequence[tuple[MicroKernel, Shape]], *, weights: str = "cold"
) -> pd.DataFrame:
    """Frame of shape ``(len(pairs), len(FEATURES))``, float64, columns in the order of ``NAMES``, rows as given.

    Behind them those of ``RING_FEATURES``, where the demand has a ring.

    ``device`` has as many units as threads will run; ``weights`` is ``cold`` or ``hot``.
    """
    least = roofline_us(device, problem, [shape for _, shape in pairs]) if isinstance(problem, Op) else None
    return frame(device, demand(device, family, problem, pairs, weights=weights), least)


def frame(device: Device, demand_: Demand, least: Column | None = None) -> pd.DataFrame:
    """Features of a demand that is already known; columns of groups that it lacks are NaN.

    ``least``: the least time of each row in microseconds, by which its label is judged; None: the demand's own. They differ
    where a family computes on other units than the fastest, or less than the definition says.
    """
    view = View(device, demand_, least)
    every = FEATURES if demand_.ring is None else (*FEATURES, *RING_FEATURES)
    table = np.empty((len(view.count), len(every)))
    for column, feature in enumerate(every):
        there = feature.group is None or getattr(demand_, feature.group) is not None
        table[:, column] = feature.of(view) if there else np.nan
    return pd.DataFrame(table, columns=[feature.name for feature in every])


_VERSIONS = {feature.name: feature.version for feature in (*FEATURES, *RING_FEATURES)}


def versions(names: Iterable[str]) -> dict[str, int]:
    """Version of each of these columns as it is computed here."""
    return {name: _VERSIONS[name] for name in names}


def recorded_versions(facts: Mapping[str, Any]) -> dict[str, int]:
    """Version by name of the columns that a model uses, from its header or from the provenance beside it.

    Before columns had versions of their own a header listed all columns and one version; every column of
    ``FEATURES_VERSION`` is what is now its version 1. A forest uses those that its settings name.
    """
    if "columns" in facts:
        return dict(facts["columns"])
    if facts["features_version"] != FEATURES_VERSION:
        return {f"features of version {facts['features_version']}": 0}
    state = facts.get("state")
    settings = state.get("settings") if isinstance(state, Mapping) else None
    used = settings.get("columns") if isinstance(settings, Mapping) else None
    listed = facts.get("features", [])
    if isinstance(used, list) and set(map(str, used)) <= set(listed):
        listed = [name for name in listed if name in used or name == "expected_log"]
    return dict.fromkeys(listed, 1)


def why_outdated(columns: Mapping[str, int]) -> str:
    """Reason why a model of these columns cannot be used, to follow its name in a sentence; empty if there is none."""
    gone = sorted(name for name in columns if name not in _VERSIONS)
    other = sorted(name for name, version in columns.items() if version != _VERSIONS.get(name, version))
    parts = [f"that are not computed any more ({', '.join(gone[:8])})"] if gone else []
    parts += [f"that are computed differently now ({', '.join(other[:8])})"] if other else []
    return f"was trained on columns {' and '.join(parts)}" if parts else ""
