"""The CUDA backend: how kernels are compiled, timed and packed, and the ways to run one call on a GPU."""

from __future__ import annotations

import importlib.metadata
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from haotuner.backends.backend import CACHE_WORD, DEVICE_WORD, OBJECTS_WORD, Choice, CompileObject, Follow, GroupSources
from haotuner.backends.cuda.pack_generated import PackedCudaGenerated
from haotuner.backends.cuda.pack_products import PackedCudaConv, PackedCudaDense, PackedCudaProduct
from haotuner.backends.cuda.pack_source import PackedOnDevice, pack_library
from haotuner.backends.cuda.processes import BUILDING, TIMING, process
from haotuner.backends.cuda.timer import CudaTimer
from haotuner.backends.fingerprint import Policy, fingerprint
from haotuner.backends.toolchain import Toolchain
from haotuner.errors import EnvironmentMissing, NothingLegal, UsageError
from haotuner.hw_profiles.gpu import gpu_devices
from haotuner.hw_profiles.gpu_queries import driver_version, query_driver
from haotuner.hw_profiles.topology import Host
from haotuner.isolate.child import Child
from haotuner.microkernels.cuda.conv import conv_families
from haotuner.microkernels.cuda.fused import Y_TYPES, fused
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.index import families_for, family_named
from haotuner.ops.convolution import is_convolution
from haotuner.plan.compose import Curve
from haotuner.spec.cold import GPU_CACHES
from haotuner.spec.composition import SERIAL, Composition, in_parts, sum_parts
from haotuner.spec.cuda_arch import CudaArch, driver_words, needed_driver, runs
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

OLDEST = 75  # compute capability 7.5: what CUDA 13 still builds for
PARTS = (2, 3, 4, 6, 8, 12, 16)  # of the sum over k that are worth timing: a grid of half to a sixteenth of a round
LEAST_TERMS = 64  # of k in a part; fewer are over before the loads of a part have arrived
WORKSPACE_BYTES = 64 << 20  # of partial sums, in fp32; beyond it a grid is not short of blocks on any GPU that we know
PARTIAL_BYTES = 4
PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc-cu13")


def ways(op: Op, *, one_order: bool) -> tuple[str, ...]:
    """Of a dense layer the sum over k whole, then in parts; every other op is whole, in one launch."""
    if one_order or op.kind != "dense":
        return (SERIAL,)
    return (SERIAL, *(in_parts(parts) for parts in PARTS if op["k"] >= parts * LEAST_TERMS))


def rows_of(way: str, op: Op, limit: int) -> int:
    """Rows up to which the partial sums of a way fit the workspace, at most ``limit``."""
    parts = sum_parts(way)
    return limit if parts == 1 else min(limit, WORKSPACE_BYTES // (PARTIAL_BYTES * parts * op["n"]))


def compilers() -> dict[str, str]:
    """CUDA compilers that are there, by name: where nvcc is, versions of NVRTC's packages."""
    nvcc = shutil.which("nvcc")
    result = {"nvcc": nvcc} if nvcc else {}
    for name in PACKAGES:
        try:
            result[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return result


def driver_lacks(arch: str, driver: int) -> str:
    """Driver that the code that is compiled here needs, where this host's is older (0: none); else empty."""
    from haotuner.backends.cuda.device_code import find_compiler

    try:
        compiler = find_compiler(arch).name
    except EnvironmentMissing:  # said where one is needed
        return ""
    needed = needed_driver(arch, int(compiler.split()[-1].partition(".")[0]))
    if not driver or driver >= needed:
        return ""
    return f"a driver for CUDA {driver_words(needed)}, as {compiler} compiles for {arch}"


def compiler_words(arch: str) -> dict[str, str]:
    """The compiler that builds for an architecture here, in a word for fingerprints. EnvironmentMissing if there is none."""
    from haotuner.backends.cuda.device_code import find_compiler

    return {"device code": find_compiler(arch).name}


_ORDINAL = re.compile(r"cuda(?::([0-9]{1,4}))?(?:/([0-9]{1,4}))?")
PRODUCTS = ("dense", "grouped", "batch_matmul")
_NO_CURVES = "CUDA tiles are masked, so no plan is made of curves of exact tiles"


def ordinal_of(requested: str) -> int | None:
    """The number in ``cuda:1`` and ``cuda:1/64``, 0 of ``cuda``; None of a text that names no device of this host."""
    match = _ORDINAL.fullmatch(requested.strip().lower())
    return int(match[1] or 0) if match else None


def units_of(requested: str) -> int:
    """The multiprocessors in ``cuda:0/64``; 0 of a whole device."""
    match = _ORDINAL.fullmatch(requested.strip().lower())
    return int(match[2] or 0) if match else 0


class CudaBackend:
    """NVIDIA GPUs from compute capability 7.5 on."""

    name = "cuda"
    libraries_mix = True

    def owns(self, device: Device) -> bool:
        """Any CUDA GPU."""
        return device.kind == self.name

    def families(self, op: Op) -> tuple[Family, ...]:
        """Every CUDA family of the op; NothingLegal for a layer of other dynamic axes than m, which no pack looks up."""
        if is_convolution(op.kind):
            return self._convolutions(op)
        if op.kind in PRODUCTS and fused(op) is None:
            written = ", ".join(filter(None, Y_TYPES))
            raise NothingLegal(f"{op.name}: {self.name} devices write results of {written}; ask for one of these with out=")
        if op.kind == "batch_matmul" and op.epilogue_operands:
            raise NothingLegal(
                f"{op.name}: bias, scale and mask of products side by side come with the call, run(x, w, bias=…); leave "
                f"{' and '.join(op.epilogue_operands)} out of the epilogue"
            )
        result = families_for(op, self.name)
        if isinstance(result[0], CudaGenerated):
            return result
        if op.dynamic != ("m",) and op.kind != "batch_matmul":
            raise NothingLegal(
                f"{op.name} leaves {', '.join(op.dynamic)} to run time; on {self.name} devices plans of {op.kind} are by m "
                "alone: give every other axis an extent, as in dense:n=2304,k=768,dtype=fp16"
            )
        return result

    def _convolutions(self, op: Op) -> tuple[Family, ...]:
        result: tuple[Family, ...] = conv_families(op)
        if not result:
            raise NothingLegal(
                f"{op.name}: on {self.name} devices convolutions are in fp32, fp16, bf16 or int8, and only those in int8 "
                "write whole numbers; write for example conv2d:c=64,f=64,r=3,s=3,pad=1,dtype=fp16"
            )
        return result

    def searched(self, op: Op, device: Device) -> tuple[Family, ...]:
        """All whose instructions the device has, in one search."""
        every = self.families(op)
        return tuple(family for family in every if family.suits(device)) or every  # of none, selection says what is lacking

    def own_device(self, text: str, *, measure: bool, cache_dir: Path | None) -> Device | None:
        """None: ``haotuner.hw_profiles`` knows GPUs by their names."""
        return None

    def check(self, device: Device, requested: str, *, measures: bool) -> None:
        """Code must exist for the architecture; only a GPU of this host is measured."""
        arch = CudaArch.of(device.arch)
        if arch is None or arch.number < OLDEST:
            raise UsageError(
                f"--device {requested}: {device.id} is {device.arch or 'of an unknown architecture'}; kernels are "
                f"built from compute capability {OLDEST // 10}.{OLDEST % 10} on"
            )
        if measures and ordinal_of(requested) is None:
            raise UsageError(
                f"--device {requested}: tuning measures on a GPU of this host, cuda:0 or cuda:N, or a part of one, "
                f"cuda:0/64; add --zero-measure for a pack from predictions for {device.id}"
            )
        driver = driver_version() or 0
        if measures and (lacking := driver_lacks(device.arch, driver)):
            raise EnvironmentMissing(
                f"--device {requested}: the host lacks {lacking}; it serves CUDA {driver // 1000}.{driver % 1000 // 10}: "
                f"update the NVIDIA driver, or compile with a CUDA {driver // 1000} toolkit"
            )

    def missing_requirement(self, device: Device) -> str:
        """A GPU of the architecture and its driver."""
        seen = query_driver()
        if not isinstance(seen, tuple):
            return f"a GPU that runs {device.arch} ({seen.detail})"
        here = [gpu.arch for gpu in gpu_devices(Host.here()) if isinstance(gpu, Device)]
        if any(runs(device.arch, arch) for arch in here):
            return driver_lacks(device.arch, driver_version() or 0)
        return f"a GPU that runs {device.arch} (it has {', '.join(here) or 'none'})"

    def threads(self, requested: Sequence[int], device: Device) -> tuple[int, ...]:
        """One plan: a device has no thread counts."""
        if set(requested) - {1}:
            raise UsageError(
                f"--threads {','.join('all' if not count else str(count) for count in requested)}: {device.id} is a GPU, "
                "whose calls are not shared among threads; leave --threads out"
            )
        return (1,)

    def fingerprint(self, device: Device, policy: Policy) -> str:
        """Of the device, the compilers, and how times are taken."""
        return fingerprint(device, policy, {**self.toolchain(), **compiler_words(device.arch)})

    def toolchain(self) -> dict[str, str]:
        """Versions of the C compiler, TVM and tvm-ffi, and of the CUDA compilers that are there."""
        return {**Toolchain.find().words(), **compilers()}

    def builder(self, environment: Mapping[str, str]) -> Child:
        """A process that compiles. It keeps cubins by content where the environment names a cache."""
        folders = {"cache": environment.get(CACHE_WORD), "objects": environment.get(OBJECTS_WORD)}
        return process(BUILDING, environment, folders)

    def code_request(self, kernels: Sequence[str], device: Device, *, in_groups: bool = False) -> dict[str, Any]:
        """For hashes of kernels' text and of what launches them. ValueError for groups: on GPUs they are no programs."""
        if in_groups:
            raise ValueError("programs of models' groups are timed on CPUs alone")
        return {"do": "code", "kernels": list(kernels)}

    def build_request(self, kernels: Sequence[str], device: Device, out: str) -> dict[str, Any]:
        """For a cubin that is timed."""
        return {"do": "build", "kernels": list(kernels), "arch": device.arch, "out": out}

    def object_request(self, kernels: Sequence[MicroKernel], arch: str, out: str) -> dict[str, Any]:
        """For the cubin of a pack."""
        return {"do": "build", "kernels": [kernel.name for kernel in kernels], "arch": arch, "out": out}

    def timer(self, device: Device, policy: Policy, environment: Mapping[str, str], *, seed: int) -> CudaTimer:
        """Timer that verifies and times on a GPU of this host: the one that the environment names, else the first."""
        visible = environment.get(DEVICE_WORD, "")
        config = {"ordinal": ordinal_of(visible) or 0, "units": units_of(visible), "arch": device.arch, "caches": GPU_CACHES}
        return CudaTimer(device, policy, process(TIMING, environment, config), seed=seed)

    def follow(self, op: Op, kernel: MicroKernel, device: Device, tiles: int) -> Follow:
        """ValueError: there is no such trial."""
        raise ValueError(f"{kernel.name}: {_NO_CURVES}")

    def ways(self, op: Op, threads: int, *, one_order: bool) -> tuple[str, ...]:
        """The sum over k whole, or in some numbers of parts. ``one_order``: whole."""
        return ways(op, one_order=one_order)

    def untimed_us(
        self, us: float, kernel: MicroKernel, composition: Composition, shape: Shape, op: Op, threads: int
    ) -> float:
        """Infinity: parts of a sum are timed, or predicted themselves."""
        return math.inf

    def rows_of(self, way: str, op: Op, threads: int, limit: int) -> int:
        """Rows up to which partial sums fit the workspace."""
        return rows_of(way, op, limit)

    def shared(self, curve: Curve, way: str, op: Op, threads: int) -> Curve:
        """ValueError: there are no curves."""
        raise ValueError(f"{curve.kernel}: {_NO_CURVES}")

    def packed(self, choice: Choice, device: Device) -> PackedOnDevice:
        """Regions and parts of the sum by cells of m; of products whose factors both come with a call a kernel a cell."""
        if is_convolution(choice.op.kind):
            return PackedCudaConv.chosen(choice)
        if isinstance(choice.family, CudaGenerated):
            return PackedCudaGenerated.chosen(choice)
        return PackedCudaProduct.chosen(choice) if choice.op.kind == "batch_matmul" else PackedCudaDense.of(choice)

    def packed_ratio(self, choice: Choice, device: Device) -> float:
        """Weights are used where the caller has them."""
        return 1.0

    def write_library(
        self,
        choices: Sequence[Choice],
        device: Device,
        out: Path,
        compile_object: CompileObject,
        groups: GroupSources | None = None,
        objects: Path | None = None,
    ) -> dict[str, Any]:
        """Cubins, plan tables and the serving runtime in one library."""
        ops = [self.packed(choice, device) for choice in choices]
        return pack_library(ops, device.arch, Toolchain.find(objects), out, compile_object, groups)

    def family_of(self, kernel: MicroKernel) -> Family:
        """The family of a micro-kernel."""
        return family_named(kernel.family)
