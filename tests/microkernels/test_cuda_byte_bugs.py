"""Broken kernels of bytes that the emulator must catch; all four in units of their own."""

from __future__ import annotations

import pytest

from haotuner.microkernels.cuda.fused import stepped
from tests.emulator import build, run
from tests.microkernels.cuda_examples import (
    BYTES,
    FAMILIES,
    KN_BYTES,
    MMA_BYTES,
    SIMT_BYTES,
    SIMT_SIGNED,
    Variant,
    unit_text,
)

pytestmark = pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing())

MMA = Variant(stepped(MMA_BYTES.kernel(bm=32, bn=32, bk=64, wm=1, wn=2, st=2, v=16)), "", (BYTES[1], BYTES[6]))
SPLIT = Variant(SIMT_BYTES.kernel(bm=32, bn=64, bk=32, tm=4, tn=4, v=16), "", (BYTES[4],))
GATHERED = Variant(SIMT_SIGNED.kernel(bm=8, bn=64, bk=64, tm=2, tn=4, v=1, kn=1), "", KN_BYTES[1:2])
BUGS = {
    "no signs where there are": (MMA, ".u8.s8.s32", ".u8.u8.s32"),
    "results that wrap": (MMA, "value < least ? least : value > most ? most : value", "value"),
    "one part of the sum for all": (SPLIT, "from[s * results + at]", "from[at]"),
    "a word without its last byte": (GATHERED, "if (i < there) found", "if (i < there && i < 3) found"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_bug_is_caught(bug, tmp_path):
    variant, right, wrong = BUGS[bug]
    source = unit_text({variant.kernel.name: (FAMILIES[variant.kernel.family], variant.kernel)}, ("int8",))
    assert right in source, "the text to break is gone"
    library = build.build_kernels(source.replace(right, wrong), tmp_path / "broken.so")
    verdicts = run.run(run.Job(machine=str(build.machine()), library=str(library), cases=[variant.case()]), tmp_path)
    assert not verdicts[variant.kernel.name].right
