"""Launch of a compiled CUDA micro-kernel by the host: all that its C code must know of it.

Every kernel is ``extern "C" __global__ void SYMBOL(ht_cuda_args[, x_map, w_map])`` (``ht_cuda_args.h``) and is launched
with ``grid = (ceil(m / tile_m) * ceil(n / tile_n), splits)`` blocks of ``threads`` threads; m = 0 is never launched.
``batch``: the kernel takes ``ht_cuda_batch`` behind its arguments, and no split; matrices are the grid's third axis.
``groups``: the kernel takes ``ht_cuda_groups`` behind its arguments, and no split; its grid has tiles for any cut of m.
With ``splits`` > 1 block row s sums the s-th share of k into ``partial[s]``, and ``haotuner_reduce_DTYPE`` adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass

# Offsets into X and W are 32-bit inside the kernels that take no tensor maps; those into Y and the partial sums 64-bit.
# The host refuses X (rows * stride) and W (n * k) of more elements.
OPERAND_ELEMENTS = 2**31 - 1
REDUCE_THREADS = 256  # of haotuner_reduce_DTYPE; it walks its elements with the whole grid, so any grid is right


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """Box of a tensor map over a row-major 2-D operand of 2-byte elements, 128-byte L2 promotion, zeros outside."""

    operand: str  # "x" (m, k; rows ldx apart) or "w" ((n, k), or (k, n))
    rows: int
    columns: int  # neighbours in memory
    swizzle_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Parameters of a launch of one micro-kernel."""

    tile_m: int
    tile_n: int
    threads: int
    shared_bytes: int  # dynamic
    vector: int  # elements: base addresses of x and w, ldx and k (w stored (k, n): n) must be multiples of it
    maps: tuple[Map, ...] = ()  # x, then w; the kernel takes them after its arguments
    splits: bool = True  # whether it can split k
    groups: bool = False  # rows come in groups, each with a matrix of its own
    batch: bool = False  # products side by side, of matrices at strides
    across: bool = False  # x is stored (k, m), and then w (k, n)
    windows: int = 0  # 1: x is images, whose windows it reads, channels last; 2: w, channels first; 3: phases
    direct: bool = False  # a convolution without columns: tiles are a thread's rows and pixels


def unfold_symbol(dtype: str) -> str:
    """Name of the kernel that lays out image columns of a dtype, in units with kernels of batches."""
    return f"haotuner_unfold_{dtype}"


def fold_symbol(dtype: str) -> str:
    """Name of the kernel that gathers a transposed convolution's result of a dtype, in the same units."""
    return f"haotuner_fold_{dtype}"


def reduce_symbol(dtype: str) -> str:
    """Name of the kernel that adds up partial sums and writes Y of a dtype."""
    return f"haotuner_reduce_{dtype}"
