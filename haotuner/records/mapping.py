"""Meaning of the parameters of foreign kernels: a micro-kernel, an operator, a shape, the work of one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from haotuner.errors import UsageError
from haotuner.spec.device import Kind
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

_DTYPES = {32: "fp32", 16: "fp16"}  # CLBlast's PRECISION; 64 and the complex ones have no Op
# No file says it: the only published set has 1536 (AutoTuningAssociation/benchmark_hub, kernels/dedisp_milo). Times are held
# against the GB/s column, which counts a byte for every channel.
_CHANNELS = 1536


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Problem that one file measured: an op (as text, for kinds that ``Op`` does not know), a shape, its flops.

    ``counted_bytes`` is what a ``GB/s`` column counts, where a kernel's files have one.
    """

    op: str
    shape: Shape
    flops: float
    counted_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMapping:
    """Mapping of one foreign kernel to a family of micro-kernels."""

    name: str
    family: str
    meaning: str
    params: Mapping[str, str]  # foreign parameter to ours, in the order of the micro-kernel's name
    absent: Mapping[str, int]  # our parameters that older kernels do not have, and what those kernels do
    problem_params: tuple[str, ...]  # foreign parameters that belong to the problem
    switches: frozenset[str]  # foreign parameters that may be 0; all others are sizes
    sizes: Mapping[int, str]  # how many extents a problem may have, and what they are
    kinds: tuple[Kind, ...]  # of the devices that such kernels run on
    problem: Callable[[tuple[int, ...], Mapping[str, int]], Problem]  # ValueError: the row is of a problem without an op

    def missing(self, keys: tuple[str, ...]) -> list[str]:
        """Parameters that this mapping needs and a file does not have."""
        needed = [key for key, ours in self.params.items() if ours not in self.absent]
        return [key for key in (*needed, *self.problem_params) if key not in keys]

    def unknown(self, keys: tuple[str, ...]) -> list[str]:
        """Parameters of a file that this mapping does not know."""
        return [key for key in keys if key not in self.params and key not in self.problem_params]

    def fits(self, sizes: tuple[int, ...]) -> None:
        """Raise ``UsageError`` unless a problem of this kernel has so many extents."""
        if len(sizes) not in self.sizes:
            raise UsageError(f"problem_size {list(sizes)}: {self.name} needs {' or '.join(self.sizes.values())}")

    def kernel(self, values: Mapping[str, int]) -> MicroKernel:
        """The micro-kernel of one configuration."""
        params = ((ours, values[key] if key in values else self.absent[ours]) for key, ours in self.params.items())
        return MicroKernel(self.family, tuple(params))


def _gemm(sizes: tuple[int, ...], values: Mapping[str, int]) -> Problem:
    # The files give m and n only: the grid has no third axis. CLBlast's own tuner takes all three equal
    # (CLBlast/src/tuning/kernels/xgemm.hpp, default 1024); ``GFLOP/s`` columns are checked against it row by row.
    m, n, k = sizes if len(sizes) == 3 else (*sizes, sizes[0])
    dtype = _DTYPES.get(values["PRECISION"])
    if dtype is None:
        raise ValueError(f"PRECISION {values['PRECISION']}: known are {', '.join(map(str, _DTYPES))}")
    op = Op(kind="dense", static=(("n", n), ("k", k)), dtype=dtype)
    shape = Shape.of(m=m)
    return Problem(op=op.name, shape=shape, flops=op.flops(shape))


def _conv(sizes: tuple[int, ...], values: Mapping[str, int]) -> Problem:
    width, height = sizes
    filter_width, filter_height = values["filter_width"], values["filter_height"]
    return Problem(
        op=f"conv2d_w{width}_h{height}_fw{filter_width}_fh{filter_height}",
        shape=Shape.of(),  # every extent is static: the kernel is compiled for them
        flops=2.0 * width * height * filter_width * filter_height,
    )


def _dedispersion(sizes: tuple[int, ...], values: Mapping[str, int]) -> Problem:
    samples, dms, beams = (*sizes, 1)[:3]
    if beams != 1:
        raise ValueError(f"problem_size names {beams} beams: only one is known")
    summed = float(samples * dms * _CHANNELS)
    return Problem(
        op=f"dedispersion_s{samples}_d{dms}_c{_CHANNELS}",
        shape=Shape.of(),
        flops=summed,  # one addition each; each reads a byte, which the files' GB/s count
        counted_bytes=summed,
    )


XGEMM = KernelMapping(
    name="xgemm",
    family="clblast_xgemm",
    meaning="CLBlast's Xgemm, C[m,n] = A[k,m]^T B[k,n] (Nugteren 2018, table 1)",
    params={
        **{name: name.lower() for name in ("MWG", "NWG", "KWG", "MDIMC", "NDIMC", "MDIMA", "NDIMB", "KWI", "VWM", "VWN")},
        **{name: name.lower() for name in ("STRM", "STRN", "SA", "SB")},
    },
    absent={},
    problem_params=("PRECISION",),
    switches=frozenset({"STRM", "STRN", "SA", "SB"}),
    sizes={2: "m, n", 3: "m, n, k"},
    kinds=("cuda", "hip"),
    problem=_gemm,
)
CONV = KernelMapping(
    name="conv",
    family="kt_conv2d",
    meaning="Kernel Tuner's 2-D convolution (van Werkhoven 2014): one image, one filter kept in constant memory",
    params={
        "block_size_x": "bx",
        "block_size_y": "by",
        "tile_size_x": "tx",
        "tile_size_y": "ty",
        "filter_height": "fh",  # of the problem too, but the loops over the filter are unrolled in the kernel
        "filter_width": "fw",
        "read_only": "ro",
        "use_padding": "pad",
        "use_shmem": "sh",
        "use_cmem": "cm",
    },
    # The first version has no such switches: it always stages the image in shared memory and always keeps the filter
    # in constant memory (github.com/KernelTuner/kernel_tuner, examples/cuda/convolution.cu).
    absent={"sh": 1, "cm": 1},
    problem_params=("filter_width", "filter_height"),
    switches=frozenset({"read_only", "use_padding", "use_shmem", "use_cmem"}),
    sizes={2: "the width and the height of the image"},
    kinds=("cuda", "hip"),
    problem=_conv,
)
DEDISPERSION = KernelMapping(
    name="dedispersion",
    family="kt_dedispersion",
    meaning="Kernel Tuner's dedispersion (Sclocco 2016): samples of all channels summed along many delays",
    params={
        "block_size_x": "bx",
        "block_size_y": "by",
        "block_size_z": "bz",
        "tile_size_x": "tx",
        "tile_size_y": "ty",
        "tile_stride_x": "sx",
        "tile_stride_y": "sy",
        "loop_unroll_factor_channel": "un",
    },
    absent={"bz": 1, "un": 0},  # one beam; unrolling left to the compiler
    problem_params=(),
    switches=frozenset({"tile_stride_x", "tile_stride_y", "loop_unroll_factor_channel"}),
    sizes={2: "samples, DMs", 3: "samples, DMs, beams"},
    kinds=("cuda", "hip"),
    problem=_dedispersion,
)
MAPPINGS = (XGEMM, CONV, DEDISPERSION)


def named(name: str) -> KernelMapping:
    """The mapping of that name; ``UsageError`` if there is none."""
    known = {mapping.name: mapping for mapping in MAPPINGS}
    if name not in known:
        raise UsageError(f"unknown mapping {name!r}; known: {', '.join(known)}")
    return known[name]


def choose(keys: tuple[str, ...], name: str | None = None) -> KernelMapping:
    """The mapping of that name, or without one the only mapping that knows a file's parameters.

    Raises:
        UsageError: no such mapping, or it does not fit the parameters.
    """
    tried = list(MAPPINGS) if name is None else [named(name)]
    for mapping in tried:
        if not mapping.missing(keys):
            return mapping
    why = "; ".join(f"{mapping.name} needs {', '.join(mapping.missing(keys))}" for mapping in tried)
    raise UsageError(f"no mapping fits the parameters {', '.join(keys)}: {why}")
