"""Numbers that the C runtime and Python share. This module is the one place; ``native/ht_limits.h`` is its ``header()``.

After a change run ``python -m haotuner.spec.limits > haotuner/runtime/native/ht_limits.h``; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from haotuner.spec.composition import WAYS

# A call.
MAX_THREADS = 256  # also the factor of an encoded setting: see CallSetting
BY_ADDRESS = (
    1 << 20
)  # added to an encoded setting: whole numbers among the operands are addresses of numpy's arrays (native/arrays.c)
MAX_OPS = 256  # of a pack: op counters are sized by it
MAX_AXES = 12  # a convolution of images with a stride has 9: results' rows and columns follow from the image's
CELL_AXES = 8  # extents that a look-up takes at least: packs had room for so many axes once
MAX_OPERANDS = 8
MAX_EXTRA = 5  # operands that an epilogue reads: bias, scale, both ends of a clamp, a residual
MAX_DYNAMIC = 4  # axes that a plan table is looked up by
MAX_RANK = 32  # of a tensor that a caller passes; leading axes are folded

SHARES = tuple(WAYS)  # what threads share of a dense call; places are the runtime's numbers

# Dense: a composition and how a call is cut.
MAX_REGIONS = 3  # of a table's entry
MAX_PARTS = 4  # three regions, and one more where a shape beyond the table repeats the bulk region
MAX_TILES = 65535  # of a region in a table's entry
MAX_TILE = 512  # floats of the largest tile: 32 registers of 16 lanes
PARTIAL_FLOATS = 8192  # of the caller's stack: sums of all parts of k but the first
PART_TERMS = 256  # fewer terms a part are done before a thread wakes
FOLD_LEAST = 65536  # terms of one row that are worth waking a thread for: some 5 us of one
TERMS_STEP = 16  # parts begin at whole cache lines of X
ROW_PIECES = 8  # of a row block at most: threads are done within an eighth of one of each other

# Shapes seen while capturing.
EXACT_EXTENT = 4096  # an extent is exact up to here, then 64 steps an octave (at most 1.6 % apart)
EXTENT_SLOTS = EXACT_EXTENT + 20 * 64  # extents up to 2^31
SHAPE_SLOTS = EXTENT_SLOTS  # different shapes of an op that are told apart

# Loops of each kind of operator: the C table that serves it. Every other kind is served by `ht_sliced`.
KIND_TABLES = {
    "dense": "ht_dense_kind",
    "batch_matmul": "ht_product_kind",
    "grouped": "ht_grouped_kind",
    **dict.fromkeys(("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"), "ht_conv_kind"),
}
SLICED = "ht_sliced_kind"

_SHARE_WORDS = ("HT_SERIAL", "HT_COLUMNS", "HT_ROWS", "HT_TERMS")
_NUMBERS = ("MAX_THREADS", "BY_ADDRESS", "MAX_OPS", "MAX_AXES", "CELL_AXES", "MAX_OPERANDS", "MAX_EXTRA", "MAX_DYNAMIC",
            "MAX_RANK", "MAX_REGIONS", "MAX_PARTS", "MAX_TILE", "PARTIAL_FLOATS", "PART_TERMS",
            "FOLD_LEAST", "TERMS_STEP", "ROW_PIECES", "EXACT_EXTENT",
            "EXTENT_SLOTS", "SHAPE_SLOTS")  # fmt: skip


@dataclass(frozen=True, slots=True)
class CallSetting:
    """Plan and threads of a native call. The C ABI takes them as one integer.

    ``plan``: index of the op's plan. ``threads``: their number; on a device 1, or 2 for a plan made for another device.
    ``by_address``: whole numbers among the operands are addresses of numpy's arrays.
    """

    plan: int
    threads: int
    by_address: bool = False

    def encode(self) -> int:
        """The integer of the C ABI."""
        return self.plan + MAX_THREADS * self.threads + (BY_ADDRESS if self.by_address else 0)

    @staticmethod
    def decode(setting: int) -> CallSetting:
        """The setting of an integer of the C ABI."""
        threads, plan = divmod(setting % BY_ADDRESS, MAX_THREADS)
        return CallSetting(plan, threads, setting >= BY_ADDRESS)


def kind_table(kind: str) -> str:
    """The C table that serves a kind of operator."""
    return KIND_TABLES.get(kind, SLICED)


def table_name(kind: str) -> str:
    """The name that the C table of a kind says of itself."""
    return kind_table(kind).removeprefix("ht_").removesuffix("_kind")


def share_word(share: str) -> str:
    """The C name of a way to share a dense call."""
    return _SHARE_WORDS[SHARES.index(share)]


def header() -> str:
    """The text of ``native/ht_limits.h``."""
    lines = ["/* Made by haotuner/spec/limits.py, which explains the numbers; change them there. */"]
    lines += ["#ifndef HT_LIMITS_H_", "#define HT_LIMITS_H_", ""]
    lines += [f"#define HT_{name} {globals()[name]}" for name in _NUMBERS]
    words = ", ".join(f"{word} = {index}" for index, word in enumerate(_SHARE_WORDS))
    lines += ["", f"enum {{ {words} }};", "", "#endif /* HT_LIMITS_H_ */", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(header(), end="")
