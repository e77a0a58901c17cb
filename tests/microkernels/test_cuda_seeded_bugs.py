"""Broken kernels that the emulator must catch: what a GPU would do wrong, seldom or silently."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from haotuner.microkernels.cuda.device_calls import DEVICE
from haotuner.microkernels.cuda.fused import stepped, steps_text
from tests.emulator import build, run
from tests.emulator.run import Call
from tests.microkernels.cuda_examples import (
    EIGHTS,
    FAMILIES,
    FOURS,
    GROUPS,
    KN_EIGHTS,
    MMA,
    SIMT,
    TURING,
    TWOS,
    WGMMA,
    Variant,
    case_of,
    grouped,
    unit_text,
)

pytestmark = pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing())

SIMT_SMALL = Variant(SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4), "", FOURS)
MMA_SMALL = Variant(MMA.kernel(bm=32, bn=64, bk=32, wm=1, wn=2, st=3), "", EIGHTS)
MMA_TURNED = Variant(MMA.kernel(bm=32, bn=64, bk=32, wm=2, wn=1, st=3), "", EIGHTS)
MMA_KN = Variant(MMA.kernel(bm=32, bn=64, bk=32, wm=1, wn=2, st=3, kn=1), "", KN_EIGHTS)
SIMT_SHORT = Variant(SIMT.kernel(bm=8, bn=64, bk=16, tm=2, tn=4, v=2), "", TWOS)
# Sixteen columns a warp: they go through shared memory in whole pieces.
MMA_NARROW = Variant(MMA.kernel(bm=32, bn=32, bk=32, wm=1, wn=2, st=3), "", EIGHTS)
TURING_SMALL = Variant(TURING.turing(bm=32, bn=64, bk=32, wm=1, wn=2), "", EIGHTS)
GROUPED_SMALL = Variant(grouped(SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4)), "", GROUPS)
# Sums that go through shared memory right behind a step in the ring's first stage.
STAGED = tuple(Call(m=64, n=32, k=64 * steps, steps=("relu",)) for steps in (1, 3, 5, 7))
WGMMA_SMALL = Variant(WGMMA.kernel(bm=64, bn=32, st=2), "", (*EIGHTS, *STAGED))
SIMT_STEPS, WGMMA_STEPS = (Variant(stepped(variant.kernel), "", variant.calls) for variant in (SIMT_SMALL, WGMMA_SMALL))
Bugs = dict[str, tuple[Variant, Callable[[str], str]]]
BARRIER = r"tvm_builtin_cuda_cta_sync\(\);"


def everywhere(pattern: str, new: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, lambda _: new, text)


def last(pattern: str, new: str) -> Callable[[str], str]:
    def apply(text: str) -> str:
        *_, match = re.finditer(pattern, text)
        return text[: match.start()] + new + text[match.end() :]

    return apply


def first(pattern: str, new: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, lambda _: new, text, count=1)


def in_lines(containing: str, pattern: str, new: str) -> Callable[[str], str]:
    def apply(text: str) -> str:
        lines = text.split("\n")
        return "\n".join(re.sub(pattern, lambda _: new, line) if containing in line else line for line in lines)

    return apply


BUGS: Bugs = {
    "simt: no barrier in the main loop": (SIMT_SMALL, last(BARRIER, ";")),
    "simt: the next step lands in the buffer being read": (SIMT_SMALL, everywhere(r"\(\(step \+ 1\) % 2\)", "(step % 2)")),
    "simt: X stored in other columns than it is read from": (SIMT_SMALL, in_lines("= x_next_ptr[", r"\^", "+ 0 *")),
    "simt: rows beyond m are read": (SIMT_SMALL, in_lines("condval", r"\(m - ", "(m + 64 - ")),
    "simt: every share sums all of k": (SIMT_SMALL, everywhere(r"ht_first_step\(", "0 * ht_first_step(")),
    "simt: rows of k of a short tile stored in one order, read in another": (
        SIMT_SHORT,
        in_lines("= x_next_ptr[", r"(?:(?<=q)|(?<=q_\d)) \^ ", " + 0 * "),
    ),
    "simt: rows of a short tile not moved for their chunk": (
        SIMT_SHORT,
        in_lines("= x_next_ptr[", r"(?<=/ 8\)) \^ ", " + 0 * "),
    ),
    "mma: W (k, n) read without the turn": (MMA_KN, everywhere("x4_trans_shared", "x4_shared")),
    "mma: one copy group too many left in flight": (
        MMA_SMALL,
        everywhere(r"tvm_builtin_ptx_cp_async_wait_group\w+_1\(\);", 'asm volatile("cp.async.wait_group 2;" ::: "memory");'),
    ),
    "mma: no barrier in the main loop": (MMA_SMALL, first(BARRIER, ";")),
    "mma: sums go through a ring that is still read": (MMA_SMALL, last(BARRIER, ";")),
    "mma: copies land in the stage being read": (MMA_SMALL, in_lines("cp_async_cg", r"freed_ptr\[0\]", "at_stage_ptr[0]")),
    "mma: the freed stage stays the same": (MMA_SMALL, everywhere(r"(?m)^ *freed_ptr\[0\] = at_stage_ptr\[0\];\n", "")),
    "mma: the second k16 step from the first's addresses": (MMA_SMALL, everywhere(r"_reads_ptr\[1\]", "_reads_ptr[0]")),
    "mma: rows left counted from the tile, not the thread": (
        MMA_SMALL,
        in_lines("- m0_ptr[0]);", r"\(m - .*(?= - m0)", "(m)"),
    ),
    "mma: what is left of k not counted down": (MMA_SMALL, everywhere(r"\(left_ptr\[0\] - 32\)", "left_ptr[0]")),
    "mma: no zeros outside the matrix": (MMA_SMALL, everywhere(r"= \(uint\)0;", "= (uint)16;")),
    "mma: stored unswizzled, read swizzled": (MMA_SMALL, in_lines("cp_async_cg", r"\^", "+ 0 *")),
    "mma8: no barrier in the main loop": (TURING_SMALL, last(BARRIER, ";")),
    "mma8: the next step lands in the buffer being read": (TURING_SMALL, everywhere(r"\(\(step \+ 1\) % 2\)", "(step % 2)")),
    "mma8: the second half of k from the first's fragments": (TURING_SMALL, everywhere(r"\(deep \* 2\)", "0")),
    "mma8: rows beyond m are read": (TURING_SMALL, in_lines("ht_fetch<8>((&(x_next", r"< m\)", "< m + 64)")),
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
    "wgmma: descriptor with another stride": (WGMMA_SMALL, everywhere(r", 64\)", ", 32)")),
}
# In the functions that all kernels share: each of these kernels calls a broken copy of its own.
EPILOGUE_BUGS: Bugs = {
    "wgmma: sums go through a ring that is still read": (WGMMA_STEPS, everywhere(r"if \(SYNC\) ht_sync_some.*", "")),
    "four threads' words not turned": (WGMMA_SMALL, everywhere(r"ht_turn_quad\(w, lane\);", "")),
    "the next columns' bias": (MMA_TURNED, everywhere(r"\(i \+ 1\) % ACROSS", "i % ACROSS")),
    "a piece's residual read with another stride": (
        MMA_SMALL,
        everywhere(r"a\.residual \+ \(int64_t\)row \* a\.ldy", "a.residual + (int64_t)row * a.n"),
    ),
    "pairs of partial sums one row off": (MMA_SMALL, everywhere(r"a\.m \+ row\) \* a\.n;", "a.m + row + 1) * a.n;")),
    "rows beyond m are written": (SIMT_SMALL, everywhere(r"row >= a\.m \|\| ", "")),
    "columns beyond n are written": (SIMT_SMALL, everywhere(r" \|\| column >= a\.n", "")),
    "16-byte stores to rows off 16 bytes": (SIMT_SMALL, everywhere(r"return \(results [^;]*;", "return true;")),
    "a stage is read before the warp has written it": (
        MMA_SMALL,
        everywhere(r"__syncwarp\(\);\n\s*(?=for|const|#|\S+ int)", ""),
    ),
    "bias of the first columns everywhere": (SIMT_SMALL, everywhere(r"\(const C\*\)from \+ column", "(const C*)from")),
    "the residual read with another stride": (SIMT_SMALL, everywhere(r"a\.residual \+ at", "a.residual + at - row")),
    "one GELU for the other": (SIMT_STEPS, everywhere(r"0\.044715f", "0.035677f")),
    "erf of another argument": (WGMMA_STEPS, everywhere(r"0\.7071067811865476f", "0.7f")),
    "all shares into one partial sum": (WGMMA_SMALL, everywhere(r"\(int64_t\)blockIdx\.y \* a\.m", "(int64_t)0")),
    "partial sums with Y's stride": (MMA_SMALL, everywhere(r"\+ row\) \* a\.n \+ column", "+ row) * a.ldy + column")),
    "halves of a piece not turned back": (MMA_NARROW, everywhere(r"v\[i\] = turned \? high : low", "v[i] = low")),
}

# In the function that finds a block's group: likewise.
GROUP_BUGS: dict[str, Callable[[str], str]] = {
    "groups: X read from its first row": everywhere(
        r"\(const T\*\)a\.x \+ \(int64_t\)at\.x_row", "(const T*)a.x + (int64_t)0"
    ),
    "groups: the first matrix for all": everywhere(r"\(const T\*\)a\.w \+ \(int64_t\)group", "(const T*)a.w + (int64_t)0"),
    "groups: the first bias for all": everywhere(r"ht_move_channels<T>\(a, .*\);", "ht_move_channels<T>(a, 0);"),
    "groups: a block's number among all groups": everywhere(
        r"left - __shfl_sync\(0xffffffffu, upto - blocks, mine\)", "left"
    ),
    "groups: blocks of the first 32 not counted off": everywhere(r"left -= .*;", ";"),
    "groups: the next 32 begin at row 0": everywhere(r"begin = __shfl.*;", ";"),
    "groups: rows up to the end of all": everywhere(r"a\.m = .*;", "a.m -= at.x_row;"),
}

# Copies that nobody breaks: what the others are judged against.
RIGHT = {
    "simt as it is": SIMT_SMALL, "mma as it is": MMA_SMALL, "groups as they are": GROUPED_SMALL,
    "simt with steps": SIMT_STEPS, "wgmma with steps": WGMMA_STEPS,
}  # fmt: skip


def broken(text: str, breaks: Callable[[str], str], bug: str) -> str:
    changed = breaks(text)
    assert changed != text, f"{bug}: the text to break is gone"
    return changed


def broken_epilogue(symbol: str, breaks: Callable[[str], str], bug: str) -> str:
    """The shared functions under other names, broken."""
    shared = "\n".join((DEVICE / f"{name}.cuh").read_text() for name in ("result", "epilogue"))
    text = broken(f"{steps_text()}\n{shared}", breaks, bug)
    declarations = re.findall(r"^HT_DEVICE [\w *]*?\b(ht_\w+)\(|^struct (ht_\w+)", text, re.MULTILINE)
    names = dict.fromkeys(function or struct for function, struct in declarations)
    return re.sub(rf"\b({'|'.join(names)})\b", rf"{symbol}_\1", text)


def copied(bugs: dict[str, Variant], symbols: dict[str, str]) -> str:
    """One unit with a copy of a bug's kernel under its symbol. TVM generates each kernel once, the rest is text."""
    kernels = {variant.kernel.name: variant.kernel for variant in bugs.values()}
    models = {name: f"model{number}_" for number, name in enumerate(kernels)}
    source = unit_text({models[n]: (FAMILIES[k.family], k) for n, k in kernels.items()}, ("fp32", "fp16"))
    matches = {}
    for name, model in models.items():  # the function, and the kernel that calls it
        whole = re.search(rf"^HT_DEVICE void {model}_kernel\(.*?^\}}\n.*?^\}}\n", source, re.MULTILINE | re.DOTALL)
        assert whole is not None, f"no {name} in the unit"
        matches[name] = whole
    copies = "".join(
        matches[variant.kernel.name][0].replace(models[variant.kernel.name], symbols[bug]) for bug, variant in bugs.items()
    )
    first, last = min(text.start() for text in matches.values()), max(text.end() for text in matches.values())
    return source[:first] + copies + source[last:]


def broken_unit(bugs: Bugs, symbols: dict[str, str]) -> str:
    """One unit that holds a copy of a kernel for each bug, broken in its own way, and ``RIGHT`` ones as they are."""
    source = copied({bug: variant for bug, (variant, _) in bugs.items()}, symbols)
    for bug, (_, breaks) in bugs.items():
        head = source.index(f"HT_DEVICE void {symbols[bug]}_kernel(")
        start = source.index(" {\n", head)
        end = source.index("\n}\n", start)
        if bug in BUGS:
            source = source[:start] + broken(source[start:end], breaks, bug) + source[end:]
        elif bug in GROUP_BUGS:
            text = broken((DEVICE / "groups.cuh").read_text(), breaks, bug).replace(
                "ht_enter_group", f"{symbols[bug]}_enter"
            )
            function = text[text.index("template <") :]
            last = source.index("\n}\n", end + 3)
            own = source[end:last].replace("ht_enter_group<", f"{symbols[bug]}_enter<")
            source = source[:head] + function + source[head:end] + own + source[last:]
        elif bug in EPILOGUE_BUGS:
            own = source[start:end].replace("ht_store_", f"{symbols[bug]}_ht_store_")
            source = source[:head] + broken_epilogue(symbols[bug], breaks, bug) + source[head:start] + own + source[end:]
    return source


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Each copy runs in a process of its own."""
    folder = tmp_path_factory.mktemp("bugs")
    right: Bugs = {name: (variant, str) for name, variant in RIGHT.items()}
    bugs: Bugs = {**BUGS, **EPILOGUE_BUGS, **{bug: (GROUPED_SMALL, breaks) for bug, breaks in GROUP_BUGS.items()}, **right}
    symbols = {bug: f"bug{number}" for number, bug in enumerate(bugs)}
    library = build.build_kernels(broken_unit(bugs, symbols), folder / "bugs.so")
    cases = [case_of(symbols[bug], FAMILIES[v.kernel.family], v.kernel, v.calls) for bug, (v, _) in bugs.items()]
    by_symbol = run.run(run.Job(machine=str(build.machine()), library=str(library), cases=cases), folder)
    return {bug: by_symbol[symbols[bug]] for bug in bugs}


@pytest.mark.parametrize("bug", [*BUGS, *EPILOGUE_BUGS, *GROUP_BUGS])
def test_the_bug_is_caught(verdicts, bug):
    assert not verdicts[bug].right


@pytest.mark.parametrize("name", RIGHT)
def test_a_copy_without_a_bug_is_right(verdicts, name):
    assert verdicts[name].right
