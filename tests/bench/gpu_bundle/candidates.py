"""Which kernels a bundle carries: what a tuner tries first, and legal ones of every family, spread over every tile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from haotuner.cost.expected import over_traffic
from haotuner.errors import NothingLegal
from haotuner.hw_profiles.profile import profiles
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.families import DENSE_FAMILIES
from haotuner.search.select.funnel import select
from haotuner.search.select.limits import BLOCK_LIMITS
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.occupancy import occupancy, waves_of
from haotuner.spec.op import Op
from haotuner.spec.shape import ShapeRange, Span
from haotuner.spec.traffic import Traffic

# Share of a bundle's kernels. fp32 and fp16 are what the suites time; bf16 runs at fp16's speed, so a few tiles tell.
SHARES = {
    "cuda_simt_fp32": 0.30,
    "cuda_mma_fp16": 0.30,
    "cuda_wgmma_fp16": 0.30,
    "cuda_mma_bf16": 0.05,
    "cuda_wgmma_bf16": 0.05,
    "cuda_wgmmas_fp16": 0.04,
    "cuda_wgmmas_bf16": 0.01,
    "cuda_gemv_fp32": 0.02,
    "cuda_gemv_fp16": 0.02,
    "cuda_gemv_bf16": 0.01,
}
WARPS_ENOUGH = 16  # resident on an SM: more hide no more latency, the published occupancy rule of thumb for matmuls
OTHER_SHARE = 0.1
FLOATS = ("fp32", "fp16", "bf16")  # what a bundle's launchers take; products of bytes are checked by what tunes them
# Ops that reach the other code paths: narrow loads and weights stored (k, n). One kernel each, for correctness.
EDGES = ((770, "nk"), (769, "nk"), (768, "kn"))  # k and how the weight is stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A kernel and the family that builds it."""

    family: CudaDense
    kernel: MicroKernel


def choose(device: Device, most: int) -> list[Choice]:
    """That many kernels for a device, if its families have them; NothingLegal if its architecture has no family."""
    running = [family for family in DENSE_FAMILIES if family.runs_on(device) and family.dtype in FLOATS]
    if not running:
        raise NothingLegal(f"no CUDA family runs on {device.arch}; the oldest architecture is sm_75")
    edges = [
        Choice(family=family, kernel=kernel)
        for family in running
        for depth, weight in EDGES
        for kernel in _spread(family, _layer(depth, weight, family.dtype), device, 1)
    ]
    shares = {family.name: SHARES.get(family.name, OTHER_SHARE) for family in running}
    whole = sum(shares.values())
    result: list[Choice] = []
    spare: list[Choice] = []  # what rounding the shares down leaves room for
    for family in running:
        share = max(1, int((most - len(edges)) * shares[family.name] / whole))
        op = _layer(768, "nk", family.dtype)
        kernels = [Choice(family=family, kernel=kernel) for kernel in _spread(family, op, device, share + 1)]
        result += kernels[:share]
        spare += kernels[share:]
    return [*result, *edges, *spare[: max(0, most - len(edges) - len(result))]]


def _layer(depth: int, weight: str, dtype: str) -> Op:
    return Op(kind="dense", static=(("n", 2304), ("k", depth)), dtype=dtype, options=(("weight", weight),))


def first(device: Device, op: Op, last_m: int, most: int) -> list[Choice]:
    """The first candidates of each family for 1 to ``last_m`` rows, as selection without a learned model ranks them."""
    result: list[Choice] = []
    traffic = Traffic.of_range(ShapeRange(spans=(("m", Span(first=1, last=last_m)),)))
    for family in DENSE_FAMILIES:
        if family.serves(op) and family.runs_on(device):
            try:
                funnel = select(op, family, device, traffic, over_traffic(op, family, device, traffic), most=most).candidates
            except NothingLegal:
                continue
            result += [Choice(family=family, kernel=candidate.kernel) for candidate in funnel]
    return result


def profile_of(arch: str) -> Device:
    """The largest known device of an architecture: its limits are the architecture's."""
    known = [profile.device for profile in profiles() if profile.device.kind == "cuda" and profile.device.arch == arch]
    if not known:
        raise NothingLegal(f"no hardware profile of architecture {arch}; add one to hw_profiles/profiles")
    return max(known, key=lambda device: (device.compute_units, device.id))


def fits(family: CudaDense, kernel: MicroKernel, device: Device) -> bool:
    """True if one block fits the device's shared memory, registers and threads."""
    footprint = family.footprint(kernel)
    limits = ((field(footprint), allowed(device)) for field, allowed in BLOCK_LIMITS.values())
    return all(most is None or field <= most for field, most in limits)


def _spread(family: CudaDense, op: Op, device: Device, most: int) -> Iterable[MicroKernel]:
    """The best of every tile, then the second best of every tile, up to ``most``; large tiles first."""
    if not family.serves(op):
        return []
    tiles: dict[tuple[int, int], list[MicroKernel]] = defaultdict(list)
    for kernel in family.points(op, device):
        if fits(family, kernel, device):
            tile = family.tile(kernel).extent
            tiles[tile["m"], tile["n"]].append(kernel)
    ranked: list[tuple[int, int, MicroKernel]] = []
    for (bm, bn), kernels in tiles.items():
        kernels.sort(key=lambda kernel: (_promise(family, kernel, device), kernel.name), reverse=True)
        ranked += [(index, -bm * bn, kernel) for index, kernel in enumerate(kernels)]
    ranked.sort(key=lambda entry: (entry[0], entry[1], entry[2].name))
    return [kernel for _, _, kernel in ranked[:most]]


def _promise(family: CudaDense, kernel: MicroKernel, device: Device) -> tuple[float, int]:
    """Warps an SM holds (up to enough), then bytes of operands in flight; higher is better."""
    footprint = family.footprint(kernel)
    blocks = max(occupancy(footprint, device).blocks, 1)
    return min(blocks * waves_of(footprint.threads, device), WARPS_ENOUGH), footprint.shared_bytes * blocks
