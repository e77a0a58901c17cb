"""Gates of everything that selection proposes: ``python -m tests.bench.cuda_gates FOLDER [--seconds N] [--classes]``.

Compiles what ``haotuner candidates`` proposes for h200, a100, l40s and rtx-4090, weights stored either way, and reads the
gates of ``tests/microkernels/cuda_gates.py`` off the machine code. Kernels that differ in their ring's length or in fp16
against bf16 alone are a class: their main loops differ in constants. ``--classes`` reads one of each class, and of every
eighth class all, whose loops are compared: a class of unlike loops is said and counts as broken. Of each architecture and
family a few are read in their build for steps, too (``fused.py``), and what these cost the loop is said.
``--convolutions N`` reads what is proposed for ``CONV_OPS`` instead, N of each architecture and family by seed.

It goes on where it stopped: FOLDER keeps verdicts and code for as long as the kernels' sources are the same. The order is by
seed and takes families in turn, so what is done is a sample of the rest. ``--part I OF``: parts may run side by side.
Exit 0: all was looked at and nothing broken; 1: a kernel breaks a gate; 3: time ran out. Needs nvcc or NVRTC, and nvdisasm.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from haotuner.backends.cuda.device_code import build_cubin
from haotuner.backends.cuda.sass import find_nvdisasm, mix, read
from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.microkernels.cuda.fused import stepped
from haotuner.spec.kernel import MicroKernel
from tests.microkernels.cuda_gates import CONV_OPS, CONV_SHAPES, DEVICES, OPS, SHAPES, broken, proposed

KN_OPS = tuple(f"{op},weight=kn" for op in OPS)
WHOLE_CLASSES = 8
STEPS_HEAD = """## Built for the steps of an epilogue

Instructions of the main loop for each that multiplies, of the build for steps over the plain one. The limits above are not
asked of builds for steps; spills and local loads are: those that break one are among the lines above.

| architecture | family | kernels | median | largest |
|---|---|---|---|---|"""
HEAD = """# Gates of what selection proposes on GPUs

By `python -m tests.bench.cuda_gates FOLDER --page docs/results/cuda-gates.md`; it goes on where it stopped.
Proposals are those of `haotuner candidates` for dense n=2304, k=768, m=1..4096 in three types, weights stored either way,
for h200, a100, l40s and rtx-4090. Kernels of a class differ in the length of their ring, or in fp16 against bf16, and
should have one main loop but for constants. Rings of two stages are compared apart: where ptxas unrolls a loop twice, their
addresses are constants. With `--classes` one of each class is read, and all of every eighth, whose loops are compared.
The gates: at most 3.0 instructions per HMMA and 1.16 per FFMA in large tiles, 13 per HGMMA; no local loads, no R2UR, no
spills.

| architecture | family | proposals | classes | kernels read | classes read |
|---|---|---|---|---|---|"""
CONV_HEAD = f"""# Gates of what selection proposes for convolutions on GPUs

By `python -m tests.bench.cuda_gates FOLDER --convolutions N --page docs/results/cuda-gates-convolutions.md`, N of each
architecture and family by seed: those of a family differ in tiles, not in how windows are read. Proposals are those of
`haotuner candidates` for {CONV_SHAPES.replace(";", ", ")} and
{"".join(chr(10) + "- `" + op + "`" for op in CONV_OPS)}

for h200, a100, l40s and rtx-4090. The gates: at most 1.16 instructions per FFMA in large tiles; no local loads and no
division in a main loop, no spills, whole stores. Kernels of bytes must multiply by IMMA or IDP; their loops have no limit.

| architecture | family | proposals | classes | kernels read | classes read |
|---|---|---|---|---|---|"""
UNIT = 12  # kernels compiled together: nvcc starts once for them, half the time of units of four
STEPPED = 4  # of an architecture and family
HAOTUNER = Path(__file__).parents[2] / "haotuner"
COMPILE = (HAOTUNER / "backends" / "cuda" / f"{name}.py" for name in ("unit", "device_code", "compiler", "sass"))
GENERATE = (*HAOTUNER.glob("microkernels/cuda/**/*"), HAOTUNER / "runtime" / "native" / "cuda" / "ht_cuda_args.h", *COMPILE)
SELECT = (*HAOTUNER.glob("microkernels/cuda/*.py"), *HAOTUNER.glob("search/select/*.py"), *HAOTUNER.glob("cost/*.py"),
          *HAOTUNER.glob("hw_profiles/**/*"))  # fmt: skip


def digest(paths: tuple[Path, ...]) -> str:
    """Of the content of files."""
    every = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file() and path.suffix != ".pyc"):
        every.update(path.read_bytes())
    return every.hexdigest()[:16]


def wanted(folder: Path, ops: Sequence[str], shapes: str) -> list[tuple[str, str]]:
    """(architecture, kernel) of all devices and these ops, each once; kept until selection changes."""
    cache = folder / f"proposed-{hashlib.sha256(repr(ops).encode()).hexdigest()[:8]}-{digest(SELECT)}.json"
    if not cache.exists():
        keys = {(DEVICES[device], kernel.name) for device in DEVICES for kernel in proposed(device, None, ops, shapes)}
        cache.write_text(json.dumps(sorted(keys)))
    return [(arch, name) for arch, name in json.loads(cache.read_text())]


def class_of(arch: str, name: str) -> tuple[str, str]:
    """What kernels have in common whose main loops are the same but for constants."""
    return arch, re.sub(r"_st\d+", "", name.replace("bf16", "fp16"))


def of_classes(every: list[tuple[str, str]], seed: int) -> list[tuple[str, str]]:
    """One of each class, and of every eighth all, by seed."""
    draw, classes = random.Random(seed), defaultdict(list)
    for arch, name in every:
        classes[class_of(arch, name)].append((arch, name))
    several = [members for _, members in sorted(classes.items()) if len(members) > 1]
    whole = draw.sample(several, len(several) // WHOLE_CLASSES)
    return sorted(
        {draw.choice(members) for members in classes.values()} | {member for members in whole for member in members}
    )


def in_families(every: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """Names by architecture and family."""
    groups: dict[tuple[str, str], list[str]] = {}
    for arch, name in every:
        groups.setdefault((arch, MicroKernel.parse(name).family), []).append(name)
    return groups


def some(every: Sequence[tuple[str, str]], each: int, seed: int) -> list[tuple[str, str]]:
    """So many of each architecture and family, by seed."""
    draw = random.Random(seed)
    groups = sorted(in_families(every).items())
    return [(arch, name) for (arch, _), names in groups for name in draw.sample(names, min(each, len(names)))]


def for_steps(every: Sequence[tuple[str, str]], seed: int) -> list[tuple[str, str]]:
    """Of each architecture and family some, by seed, in both builds."""
    return [(arch, variant) for arch, name in some(every, STEPPED, seed) for variant in (name, with_steps(name))]


def with_steps(name: str) -> str:
    """A kernel's name in its build for steps."""
    return stepped(MicroKernel.parse(name)).name


def longer(loops: Mapping[tuple[str, str], list[int] | None]) -> dict[tuple[str, str], list[float]]:
    """Instructions of a loop for each that multiplies, with steps over plain, by architecture and family."""
    ratios = defaultdict(list)
    for (arch, name), loop in loops.items():
        other = loops.get((arch, with_steps(name)))
        if loop and other and name != with_steps(name):
            ratios[arch, MicroKernel.parse(name).family].append(other[0] / other[1] / (loop[0] / loop[1]))
    return ratios


def unlike(loops: Mapping[tuple[str, str], list[int] | None]) -> list[str]:
    """Classes whose members that were read have other main loops: instructions, and those that multiply.

    Rings of two stages are apart: where ptxas unrolls the loop twice, their addresses are constants.
    """
    reasons = defaultdict(set)
    for (arch, name), loop in loops.items():
        if loop is not None:
            reasons[*class_of(arch, name), "_st2_" in name].add(tuple(loop))
    return [f"{arch} {name}: {sorted(seen)}" for (arch, name, _), seen in sorted(reasons.items()) if len(seen) > 1]


def units(every: list[tuple[str, str]], seed: int, ahead: Sequence[tuple[str, str]] = ()) -> list[tuple[str, list[str]]]:
    """Kernels of one architecture and family that are compiled together, by seed, each family's first before any second.

    Those of ``ahead`` come first.
    """
    draw, groups = random.Random(seed), in_families(every)
    batches: list[tuple[int, str, list[str]]] = []
    for (arch, _), names in sorted(groups.items(), reverse=True):
        draw.shuffle(names)
        first = [name for name in names if (arch, name) in ahead]
        names = [*first, *(name for name in names if name not in first)]
        batches += [(at, arch, names[at : at + UNIT]) for at in range(0, len(names), UNIT)]
    batches.sort(key=lambda unit: unit[0])
    return [(arch, names) for _, arch, names in batches]


def seen(folder: Path, sources: str, what: str = "broken") -> dict[tuple[str, str], Any]:
    """The broken gates (or ``loop``) of each kernel that was looked at in this state of the sources."""
    results: dict[tuple[str, str], Any] = {}
    for path in sorted(folder.glob("verdicts-*.jsonl")):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if entry["sources"] == sources:
                results[entry["arch"], entry["kernel"]] = entry.get(what)
    return results


def verdicts(arch: str, names: list[str], folder: Path) -> Iterator[tuple[str, list[str], list[int]]]:
    """Compile kernels together; each with the gates it breaks, and its main loop: instructions, those that multiply."""
    nvdisasm = find_nvdisasm()
    assert nvdisasm is not None, "nvdisasm: neither on the PATH nor in a wheel nvidia-cuda-nvdisasm"
    families = {family.name: family for family in CUDA_FAMILIES}
    kernels = [MicroKernel.parse(name) for name in names]
    programs = {kernel.name: (families[kernel.family], kernel) for kernel in kernels}
    cubin = build_cubin(programs, folder / f"unit-{time.monotonic_ns()}.cubin", arch=arch, cache=folder / "code")
    code = read(cubin.path, nvdisasm)
    for name, (family, kernel) in programs.items():
        why = list(broken(family, kernel, arch, code[name]))
        if spilled := cubin.resources[name]["spill_bytes"]:
            why.append(f"{spilled:.0f} bytes of spills")
        facts = mix(code[name])
        yield name, why, [int(facts.get(key, 0)) for key in ("loop_instructions", "loop_multiplies")]
    cubin.path.unlink()
    cubin.path.with_suffix(".cu").unlink()


def main() -> None:
    """Look, as long as there is time; then say what breaks which gate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "OF"), help="from 0")
    parser.add_argument("--classes", action="store_true", help="one of each class, of every eighth all")
    parser.add_argument("--convolutions", type=int, metavar="N", help="what is proposed for convolutions, N of each family")
    parser.add_argument("--page", type=Path, help="write what was read as a page")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    args.folder.mkdir(parents=True, exist_ok=True)
    convolutions, sources = args.convolutions, digest(GENERATE)
    ops, shapes = ((*OPS, *KN_OPS), SHAPES) if convolutions is None else (CONV_OPS, CONV_SHAPES)
    proposals = wanted(args.folder, ops, shapes)
    every = of_classes(proposals, args.seed) if args.classes else proposals
    if convolutions is not None:
        every = some(proposals, convolutions, args.seed)
    beside = for_steps(every, args.seed) if convolutions is None else []
    every = sorted({*every, *beside})
    done = seen(args.folder, sources)
    journal = args.folder / f"verdicts-{args.part[0]}-{args.part[1]}.jsonl"
    for arch, names in units(every, args.seed, beside)[args.part[0] :: args.part[1]]:
        if time.monotonic() > end:
            break
        if all((arch, name) in done for name in names):
            continue
        with journal.open("a") as out:
            for name, why, loop in verdicts(arch, names, args.folder):
                entry = {"arch": arch, "kernel": name, "broken": why, "loop": loop, "sources": sources}
                out.write(json.dumps(entry) + "\n")
    reasons = {key: why for key, why in seen(args.folder, sources).items() if key in set(every)}
    read_loops = seen(args.folder, sources, "loop")
    loops = {key: loop for key, loop in read_loops.items() if key in set(proposals)}
    broken_ones = [f"{arch} {name}: {'; '.join(why)}" for (arch, name), why in sorted(reasons.items()) if why]
    other = [f"a class of unlike loops: {line}" for line in unlike(loops)]
    classes, reached = ({class_of(*key) for key in keys} for keys in (proposals, loops))
    lines = [
        f"{len(proposals)} proposals in {len(classes)} classes; {len(reached)} classes have a kernel that was looked at"
    ]
    lines.append(f"{len(reasons)} of {len(every)} kernels looked at, {len(broken_ones) + len(other)} break a gate")
    print("\n".join([*broken_ones, *other, *lines]))
    if args.page is not None:
        head, steps = (HEAD, of_steps(longer(read_loops))) if convolutions is None else (CONV_HEAD, "")
        args.page.write_text(page(head, proposals, loops, [*broken_ones, *other]) + steps)
    sys.exit(1 if broken_ones or other else 0 if len(reasons) == len(every) else 3)


def page(head: str, proposals: Sequence[tuple[str, str]], loops: Mapping[tuple[str, str], Any], bad: Sequence[str]) -> str:
    """What was read, by architecture and family, as a page."""
    rows: dict[tuple[str, str], list[set[tuple[str, str]]]] = defaultdict(lambda: [set(), set(), set(), set()])
    for key in proposals:
        proposed_here, classes, read_here, reached = rows[key[0], MicroKernel.parse(key[1]).family]
        proposed_here.add(key)
        classes.add(class_of(*key))
        if key in loops:
            read_here.add(key)
            reached.add(class_of(*key))
    lines = [
        f"| {arch} | `{family}` | {' | '.join(str(len(members)) for members in sets)} |"
        for (arch, family), sets in sorted(rows.items())
    ]
    total = " | ".join(str(len(set().union(*(sets[at] for sets in rows.values())))) for at in range(4))
    return "\n".join(
        [
            head,
            *lines,
            f"| all | | {total} |",
            "",
            "Breaking a gate, or a class whose loops differ (instructions, those that multiply):"
            if bad
            else "None of those that were read breaks a gate.",
            "",
            *(f"- {line}" for line in bad),
            *([""] if bad else []),
        ]
    )


def of_steps(ratios: Mapping[tuple[str, str], Sequence[float]]) -> str:
    """What the code of an epilogue's steps costs main loops, as a section of the page."""
    lines = [
        f"| {arch} | `{family}` | {len(values)} | {statistics.median(values):.2f} | {max(values):.2f} |"
        for (arch, family), values in sorted(ratios.items())
    ]
    return "\n".join(["", STEPS_HEAD, *lines, ""])


if __name__ == "__main__":
    main()
