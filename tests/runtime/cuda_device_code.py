"""Device code of CUDA packs built without tuning: several picks share a unit, for CUDA's headers are half of it all."""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.backends.toolchain import Toolchain
from haotuner.spec.op import Op
from tests.kept import kept, sources
from tests.run_folder import in_a_run
from tests.runtime import cuda_packs
from tests.runtime.cuda_byte_packs import BYTE_PICKS, BYTE_PRODUCTS
from tests.runtime.cuda_packs import GENERATED_PICKS, ONE_FOLD_PICKS, Pick, family, make_pack, packed
from tests.runtime.cuda_window_packs import IMAGE_PICKS, PHASE_PICKS, WINDOW_PICKS
from tests.standin.cubins import cubin_of

MOST = 8  # kernels of a unit: a test alone waits for so many
TOGETHER = (
    *cuda_packs.PICKS, *cuda_packs.FUSED_PICKS, *cuda_packs.KN_PICKS, *cuda_packs.GROUPED_PICKS, *cuda_packs.STEPPED_PICKS,
    *cuda_packs.PRODUCT_PICKS, *cuda_packs.TURNED_PICKS, *cuda_packs.CONV_PICKS, *cuda_packs.TRANSPOSED_PICKS,
    *cuda_packs.DIRECT_PICKS, *GENERATED_PICKS, *ONE_FOLD_PICKS, *BYTE_PICKS, *BYTE_PRODUCTS, *WINDOW_PICKS, *IMAGE_PICKS,
    *PHASE_PICKS,
)  # fmt: skip


def build_pack(out: Path, pick: Pick, code: Path, linker: Toolchain | None = None) -> Path:
    """A pack of a pick, with device code that lies below ``code`` as the code cache leaves it."""
    return make_pack(out, [packed(pick)], pick.arch, device_code(pick, code), linker=linker)


def device_code(pick: Pick, code: Path) -> Path:
    """The cubin with a pick's kernels below ``code``; in a run of the tests with those of others, compiled once for all."""
    picks = units().get(pick, (pick,)) if in_a_run() else (pick,)
    key = hashlib.sha256(repr([(member.op, member.arch, member.kernels) for member in picks]).encode()).hexdigest()[:16]
    if in_a_run() and not (code / f"{key}.cu").exists():
        own = [Path(str(module)).read_bytes() for module in (__file__, cuda_packs.__file__)]
        cached = kept("device-code", [sources(), key, *own], lambda folder: _write_code(picks, folder / f"{key}.cu"))
        shutil.copytree(cached, code, dirs_exist_ok=True)
    elif not (code / f"{key}.cu").exists():
        code.mkdir(parents=True, exist_ok=True)
        _write_code(picks, code / f"{key}.cu")
    return cubin_of(code / f"{key}.cu", code, pick.arch)


@functools.cache
def units() -> dict[Pick, tuple[Pick, ...]]:
    """The picks that share a unit, by each of them."""
    by_pick: dict[Pick, tuple[Pick, ...]] = {}
    for _, picks in groupby(sorted(dict.fromkeys(TOGETHER), key=lambda pick: pick.arch), key=lambda pick: pick.arch):
        unit: tuple[Pick, ...] = ()
        for pick in picks:
            if len({kernel for member in (*unit, pick) for kernel in member.kernels}) > MOST:
                unit = ()
            unit = (*unit, pick)
            by_pick |= dict.fromkeys(unit, unit)
    return by_pick


def _write_code(picks: Sequence[Pick], unit: Path) -> None:
    programs = {kernel.name: (family(kernel), kernel) for pick in picks for kernel in pick.kernels}
    reduced = [pick for pick in picks if pick not in (*GENERATED_PICKS, *ONE_FOLD_PICKS)]
    unit.write_text(device_unit(programs, reduces=sorted({Op.parse(pick.op).dtype for pick in reduced})))
    cubin_of(unit, unit.parent, picks[0].arch)
