"""A toy operator with two dynamic axes, served by the runtime's common loops: y[b, m] = the sum of x[b, m, k] over k."""

from __future__ import annotations

from pathlib import Path

from haotuner.backends.cpu.pack_op import PackedAxis, PackedOperand, PackedSliced, SlicedEntry, SlicedKernel, SlicedPlan

NAME = "row_sum_k5"
BOUNDS = (1, 4, 16)  # the largest m of each cell; beyond the last it is the last one's
B_ROWS = 3  # cells of b: 1, 2, 3 and more

# The first kernel marks its results by +0, the second by +1000 and so on, so that a test sees which one served.
KERNEL = """
int __tvm_ffi_{name}(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {{
  (void)self, (void)result;
  if (count != 3) return -1;
  const DLTensor *x = args[0].v_ptr, *scale = args[1].v_ptr, *y = args[2].v_ptr;
  if (x->shape[0] != y->shape[0] || x->shape[1] != y->shape[1] || scale->shape[0] != x->shape[1]) return -1;
  for (int64_t b = 0; b < x->shape[0]; ++b)
    for (int64_t m = 0; m < x->shape[1]; ++m) {{
      const float* row = (const float*)x->data + b * x->strides[0] + m * x->strides[1];
      float sum = {mark};
      for (int64_t k = 0; k < x->shape[2]; ++k) sum += row[k];
      ((float*)y->data)[b * y->strides[0] + m * y->strides[1]] = sum * ((const float*)scale->data)[m * scale->strides[0]];
    }}
  return 0;
}}
"""


def row_sum(threads: tuple[int, ...] = (1, 2), name: str = NAME) -> PackedSliced:
    """Cells over b and m; threads share b where it is long and m where it is not."""
    kernels = [SlicedKernel(name=f"toy_{mark}", tile={"b": 2, "m": 4}) for mark in range(4)]
    cells = [(b, m) for b in range(B_ROWS) for m in range(len(BOUNDS))]
    entries = [SlicedEntry(kernel=b + (m == 2), axis=(None, "m", "b")[b]) for b, m in cells]
    return PackedSliced(
        name=name,
        kind="row_sum",
        axes=(PackedAxis(name="b", first=1, last=8), PackedAxis(name="m", first=1, last=32), PackedAxis(name="k", extent=5)),
        operands=(
            PackedOperand(name="x", role="input", axes=("b", "m", "k")),
            PackedOperand(name="scale", role="constant", axes=("m",)),
            PackedOperand(name="y", role="output", axes=("b", "m")),
        ),
        kernels=kernels,
        plans=[SlicedPlan(threads=count, grid={"b": B_ROWS, "m": BOUNDS}, entries=entries) for count in threads],
    )


def cell_of(b: int, m: int) -> int:
    """The cell that a shape belongs to, by the words of SlicedPlan."""
    return (min(b, B_ROWS) - 1) * len(BOUNDS) + next((i for i, bound in enumerate(BOUNDS) if m <= bound), len(BOUNDS) - 1)


def mark_of(b: int, m: int) -> int:
    """What the kernel of that cell adds to every sum."""
    return 1000 * (min(b, B_ROWS) - 1 + (cell_of(b, m) % len(BOUNDS) == 2))


def kernel_source(folder: Path) -> Path:
    """The C source of the kernels."""
    path = folder / "toy_kernels.c"
    text = "".join(KERNEL.format(name=f"toy_{mark}", mark=f"{1000 * mark}.0f") for mark in range(4))
    path.write_text("#include <tvm/ffi/c_api.h>\n" + text)
    return path
