"""Broken kernels that the emulator must catch: what a GPU would do wrong, seldom or silently."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from haotuner.backends.cuda.compile import cuda_source
from tests.content.cuda_examples import EIGHTS, FAMILIES, FOURS, MMA, SIMT, WGMMA, Variant
from tests.emulator import build, run

pytestmark = pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing())

SIMT_SMALL = Variant(SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4), "", FOURS)
MMA_SMALL = Variant(MMA.kernel(bm=32, bn=64, bk=32, wm=1, wn=2, st=3), "", EIGHTS)
WGMMA_SMALL = Variant(WGMMA.kernel(bm=64, bn=32, st=2), "", (*EIGHTS, (64, 32, 512, 0, 0)))
BARRIER = r"tvm_builtin_cuda_cta_sync\(\);"


def everywhere(pattern: str, new: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, lambda _: new, text)


def last(pattern: str, new: str) -> Callable[[str], str]:
    def apply(text: str) -> str:
        *_, found = re.finditer(pattern, text)
        return text[: found.start()] + new + text[found.end() :]

    return apply


def in_lines(containing: str, pattern: str, new: str) -> Callable[[str], str]:
    def apply(text: str) -> str:
        lines = text.split("\n")
        return "\n".join(re.sub(pattern, lambda _: new, line) if containing in line else line for line in lines)

    return apply


BUGS: dict[str, tuple[Variant, Callable[[str], str]]] = {
    "simt: no barrier in the main loop": (SIMT_SMALL, last(BARRIER, ";")),
    "simt: the next step lands in the buffer being read": (SIMT_SMALL, everywhere(r"\(\(step \+ 1\) % 2\)", "(step % 2)")),
    "simt: X stored in other columns than it is read from": (SIMT_SMALL, in_lines("= x_next_ptr[", r"\^", "+ 0 *")),
    "simt: rows beyond m are read": (SIMT_SMALL, in_lines("if (((((int)threadIdx.x) <", r"< m\)", "< m + 64)")),
    "simt: columns beyond n are written": (SIMT_SMALL, everywhere(r"\) < n\) \{\n(\s+)y_ptr", ") < n + 8) { y_ptr")),
    "simt: 16-byte stores to rows off 16 bytes": (SIMT_SMALL, everywhere(r"\(\(y_stride & 3\) == 0\)", "true")),
    "mma: one copy group too many left in flight": (
        MMA_SMALL,
        everywhere(r"tvm_builtin_ptx_cp_async_wait_group\w+\(\);", 'asm volatile("cp.async.wait_group 2;" ::: "memory");'),
    ),
    "mma: no barrier in the main loop": (MMA_SMALL, last(BARRIER, ";")),
    "mma: copies land in the stage being read": (MMA_SMALL, everywhere(r"\(stage_ptr\[0\] - 1\)", "stage_ptr[0]")),
    "mma: no zeros outside the matrix": (MMA_SMALL, everywhere(r"= \(uint\)0;", "= (uint)16;")),
    "mma: stored unswizzled, read swizzled": (MMA_SMALL, in_lines("cp_async_cg", r"\^", "+ 0 *")),
    "mma: paired stores to rows on odd elements": (MMA_SMALL, everywhere(r"\(\(y_stride & 1\) == 0\)", "true")),
    "wgmma: a stage handed back while it is read": (
        WGMMA_SMALL,
        everywhere(
            r"tvm_\w+wait_group_sync_aligned_1\(\);", 'asm volatile("wgmma.wait_group.sync.aligned 2;" ::: "memory");'
        ),
    ),
    "wgmma: the consumer does not wait for a full stage": (
        WGMMA_SMALL,
        everywhere(r"tvm_builtin_cuda_mbarrier_wait\(.*at_ptr.*\n", ""),
    ),
    "wgmma: the producer does not wait for an empty stage": (
        WGMMA_SMALL,
        everywhere(r"tvm_builtin_cuda_mbarrier_wait\(.*slot_ptr.*\n", ""),
    ),
    "wgmma: fewer bytes expected than copied": (WGMMA_SMALL, everywhere(r"\(uint\)12288", "(uint)8192")),
    "wgmma: stages never handed back": (WGMMA_SMALL, everywhere(r"tvm_builtin_ptx_mbarrier_arrive_arrive.*\n", "")),
    "wgmma: the consumer's phase never turns": (WGMMA_SMALL, everywhere(r"turn_ptr\[0\] \^ 1", "turn_ptr[0]")),
    "wgmma: descriptor with another stride": (WGMMA_SMALL, everywhere(r"1, 64, 3\);", "1, 32, 3);")),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """One unit holds a copy of a kernel for each bug; each copy is broken in its own way and runs in its own process."""
    folder = tmp_path_factory.mktemp("bugs")
    symbols = {bug: f"bug{number}" for number, bug in enumerate(BUGS)}
    programs = {symbols[bug]: (FAMILIES[variant.kernel.family], variant.kernel) for bug, (variant, _) in BUGS.items()}
    source = cuda_source(programs, "sm_90a")
    for bug, (_, broken) in BUGS.items():
        start = source.index(" {\n", source.rindex(f" {symbols[bug]}_kernel("))
        end = source.index("\n}\n", start)
        changed = broken(source[start:end])
        assert changed != source[start:end], f"{bug}: the text to break is gone"
        source = source[:start] + changed + source[end:]
    library = build.build_unit(source, folder / "bugs.so")
    cases = [
        run.Case(symbol=symbols[bug], dtype=FAMILIES[v.kernel.family].dtype, shapes=v.shapes) for bug, (v, _) in BUGS.items()
    ]
    found = run.run(run.Job(machine=str(build.machine()), library=str(library), cases=cases), folder)
    return {bug: found[symbols[bug]] for bug in BUGS}


@pytest.mark.parametrize("bug", BUGS)
def test_the_bug_is_caught(verdicts, bug):
    assert not verdicts[bug].right
