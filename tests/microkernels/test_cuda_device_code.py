"""Kernels to cubins: nvcc and NVRTC, the cache, the bound of resident blocks, failures as data."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from haotuner.backends.cuda import device_code
from haotuner.backends.cuda.compiler import Compiled, CompileFailed, compiled, find_nvcc, find_nvrtc, first_for
from haotuner.backends.cuda.cubin import read_cubin
from haotuner.backends.cuda.device_code import (
    CUBIN,
    FACTS,
    UNIT,
    CodeCache,
    Entry,
    Programs,
    bounded,
    build_cubin,
    rank,
    suspicious,
    unbounded,
)
from haotuner.backends.cuda.processes import build, programs_of
from haotuner.backends.cuda.sass import WIDTHS
from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.isolate.answers import Refusal
from haotuner.spec.kernel import MicroKernel
from tests.microkernels.cuda_examples import FAMILIES, MMA, SIMT, WGMMA
from tests.microkernels.little_cubin import little_cubin
from tests.standin.patience import WALL_S

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc: no CUDA toolkit")
SMALL = SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4)
HALF = MMA.kernel(bm=64, bn=64, bk=32, wm=2, wn=2, st=3)
HOPPER = WGMMA.kernel(bm=64, bn=64, st=3)


def programs(*kernels: MicroKernel) -> Programs:
    return {kernel.name: (FAMILIES[kernel.family], kernel) for kernel in kernels}


@pytest.fixture
def nvrtc():
    try:
        return find_nvrtc()
    except EnvironmentMissing:
        pytest.skip("nvrtc: the wheel nvidia-cuda-nvrtc is not installed")


@dataclass
class Told:
    """A compiler that answers with facts it was told, whatever the text; it counts what it is asked."""

    name: str = "told 1.0"
    spills: tuple[int, ...] = (0,)  # of one build after the other
    registers: int = 64
    asked: list[str] = field(default_factory=list)

    def builds_for(self, arch: str) -> bool:
        return arch != "sm_70"

    def compile(self, source: str, arch: str, flags: Sequence[str] = ()) -> Compiled:
        spill = self.spills[min(len(self.asked), len(self.spills) - 1)]
        self.asked.append(source)
        facts = {"registers": self.registers, "stack_bytes": spill, "spill_bytes": spill, "static_shared_bytes": 0}
        names = [line.split("(")[-2].split()[-1] for line in source.splitlines() if line.startswith('extern "C" __global__')]
        return Compiled(cubin=source.encode(), resources={name: facts for name in names})


@needs_nvcc
def test_a_cubin_holds_kernels_of_one_parameter_list_and_its_text_lies_beside_it(tmp_path):
    built = build_cubin(programs(SMALL, HALF), tmp_path / "unit.cubin", arch="sm_80", reduces=("fp16", "fp32"))
    facts = read_cubin(built.path.read_bytes())
    assert (
        set(facts.kernels) == {SMALL.name, HALF.name, "haotuner_reduce_fp16", "haotuner_reduce_fp32"} == set(built.resources)
    )
    assert all(kernel.parameters == [(0, 120)] for kernel in facts.kernels.values())
    for name, kernel in facts.kernels.items():
        resources = built.resources[name]
        assert (kernel.registers, kernel.stack_bytes, kernel.shared) == (
            resources["registers"],
            resources["stack_bytes"],
            resources["static_shared_bytes"],
        )
    assert SMALL.name in (tmp_path / "unit.cu").read_text()


@needs_nvcc
def test_the_second_build_takes_no_compiler(tmp_path, monkeypatch):
    first = build_cubin(programs(SMALL), tmp_path / "a.cubin", arch="sm_89", cache=tmp_path / "cache")
    monkeypatch.setattr(device_code, "find_compiler", lambda arch: pytest.fail("asked for a compiler"))
    second = build_cubin(programs(SMALL), tmp_path / "b.cubin", arch="sm_89", cache=tmp_path / "cache")
    assert second.path.read_bytes() == first.path.read_bytes()
    assert (second.resources, second.compiler) == (first.resources, first.compiler)
    with pytest.raises(pytest.fail.Exception, match="asked for a compiler"):
        build_cubin(programs(SMALL), tmp_path / "b.cubin", arch="sm_80", cache=tmp_path / "cache")


@pytest.mark.parametrize(("arch", "kernel"), [("sm_75", SMALL), ("sm_80", HALF), ("sm_89", HALF), ("sm_90a", HOPPER)])
def test_nvrtc_builds_what_nvcc_builds(tmp_path, nvrtc, arch, kernel):
    built = build_cubin(programs(kernel), tmp_path / "unit.cubin", arch=arch, compiler=nvrtc)
    facts = read_cubin(built.path.read_bytes())
    assert facts.arch == arch
    assert facts.kernels[kernel.name].registers == built.resources[kernel.name]["registers"] > 0
    assert built.compiler.startswith("nvrtc ")


def test_nvrtc_that_refuses_says_why(nvrtc):
    with pytest.raises(CompileFailed, match="error"):
        nvrtc.compile("int broken( {", "sm_80")


def test_without_a_compiler_the_message_says_how_to_get_one(tmp_path):
    with pytest.raises(EnvironmentMissing, match=r"pip install '\.\[cuda\]' in a clone"):
        first_for("sm_80", [])
    with pytest.raises(EnvironmentMissing, match=r"sm_70, found told 1.0, which does not build for it.*CUDA 12 compiler"):
        first_for("sm_70", [Told()])
    with pytest.raises(EnvironmentMissing, match="found no NVRTC"):
        find_nvrtc(tmp_path / "libnvrtc.so.13")


@needs_nvcc
def test_nvcc_comes_first(monkeypatch):
    assert device_code.find_compiler("sm_80").name == find_nvcc().name
    monkeypatch.setattr(device_code, "find_nvcc", lambda: first_for("sm_80", []))
    monkeypatch.setattr(device_code, "find_nvrtc", lambda: Told())
    assert device_code.find_compiler("sm_80").name == "told 1.0"


def test_advice_of_ptxas_is_an_error():
    message = "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x in 'f'"
    with pytest.raises(CompileFailed, match=r"sm_90a: ptxas does not follow the program: .*serialized"):
        compiled(little_cubin(), message, "sm_90a")


def test_a_kernel_that_spills_is_built_without_its_bound_and_the_better_is_kept(tmp_path):
    better = Told(spills=(48, 0))
    built = build_cubin(programs(SMALL), tmp_path / "unit.cubin", arch="sm_80", compiler=better)
    assert [len(bounded(source)) for source in better.asked] == [1, 0]
    assert (built.resources[SMALL.name]["spill_bytes"], built.resources[SMALL.name]["bounded"]) == (0, 0)
    assert not bounded((tmp_path / "unit.cu").read_text())
    worse = Told(spills=(48, 96))
    built = build_cubin(programs(SMALL), tmp_path / "unit.cubin", arch="sm_80", compiler=worse)
    assert (built.resources[SMALL.name]["spill_bytes"], built.resources[SMALL.name]["bounded"]) == (48, 1)
    assert bounded((tmp_path / "unit.cu").read_text()) == [SMALL.name]
    sound = Told()
    build_cubin(programs(SMALL), tmp_path / "unit.cubin", arch="sm_80", compiler=sound)
    assert len(sound.asked) == 1


def facts(
    width: float, instructions: float, *, multiplies: float = 64, local: float = 0, resident: float = 2
) -> dict[str, float]:
    return {
        "spill_bytes": 0, "resident_blocks": resident, "registers": 128, "loop_width": width, "loop_multiplies": multiplies,
        "loop_instructions": instructions, "loop_local_loads": local,
    }  # fmt: skip


def test_a_long_main_loop_asks_for_the_second_build_and_residency_comes_before_length():
    hmma, ffma = WIDTHS["HMMA"], WIDTHS["FFMA"]
    assert suspicious(facts(hmma, 3.4 * 64)) and not suspicious(facts(hmma, 2.9 * 64))
    assert not suspicious(facts(hmma, 8 * 16, multiplies=16)), "too few to share a branch among"
    assert suspicious(facts(ffma, 1.2 * 2048, multiplies=2048)) and not suspicious(facts(ffma, 1.2 * 512, multiplies=512))
    assert suspicious(facts(hmma, 64, local=1)) and suspicious({"spill_bytes": 4.0})
    assert not suspicious({"spill_bytes": 0.0}), "no disassembler, and no spill"
    shorter, fewer = facts(hmma, 2.8 * 64), facts(hmma, 2.8 * 64, resident=1)
    assert rank(shorter) < rank(facts(hmma, 3.4 * 64)) < rank(fewer)
    assert rank(facts(hmma, 3.4 * 64)) < rank(facts(hmma, 2.8 * 64, local=1))


@pytest.mark.parametrize(("free_loop", "chosen"), [(180.0, "free"), (230.0, "bounded")])
def test_the_better_of_two_builds_is_kept_by_the_length_of_their_loops(tmp_path, monkeypatch, free_loop, chosen):
    """With the bound 3.4 instructions for an HMMA; of two kernels in a unit the second is sound and stays as it is."""
    compiler, sound = Told(), MMA.kernel(bm=64, bn=64, bk=32, wm=2, wn=2, st=4)

    def mixes(cubin: bytes) -> dict[str, dict[str, float]]:
        bounded_names = bounded(cubin.decode())
        loop = {"loop_width": 32.0, "loop_multiplies": 64.0, "loop_local_loads": 0.0}
        long = 217.6 if HALF.name in bounded_names else free_loop
        return {HALF.name: {**loop, "loop_instructions": long}, sound.name: {**loop, "loop_instructions": 180.0}}

    monkeypatch.setattr(device_code, "_mixes", mixes)
    built = build_cubin(programs(HALF, sound), tmp_path / "unit.cubin", arch="sm_80", compiler=compiler)
    whole, second, *last = compiler.asked
    assert bounded(whole) == [HALF.name, sound.name] and not bounded(second)
    assert HALF.name in second and sound.name not in second, "only what is doubtful is compiled once more"
    assert [bounded(text) for text in last] == ([[sound.name]] if chosen == "free" else [])
    assert built.resources[HALF.name]["bounded"] == (chosen == "bounded")
    assert built.resources[sound.name]["bounded"] == 1


def test_a_bound_is_taken_off_one_kernel_alone():
    text = "__global__ void __launch_bounds__(64, 3) one(int a) {}\n__global__ void __launch_bounds__(64, 2) two(int a) {}"
    assert bounded(text) == ["one", "two"]
    assert bounded(unbounded(text, ["two"])) == ["one"]
    assert "__launch_bounds__(64) two(" in unbounded(text, ["two"])


def test_the_cache_makes_a_damaged_entry_again_and_tells_compilers_apart(tmp_path):
    cache, entry = CodeCache(tmp_path / "cache"), Entry(unit="text", cubin=b"code", facts={"compiler": "a 1", "n": 1})
    assert cache.find("x", None) is None
    folder = cache.keep("x", "a 1", entry)
    assert sorted(path.name for path in folder.iterdir()) == sorted((UNIT, CUBIN, FACTS))
    assert cache.find("x", "a 1") is not None and cache.find("x", None) is not None
    assert cache.find("x", "b 1") is None and cache.find("y", "a 1") is None
    for name, damage in ((CUBIN, b"cod"), (UNIT, b"texts"), (FACTS, b"{"), (FACTS, b"[]")):
        (folder / name).write_bytes(damage)
        assert cache.find("x", "a 1") is None
        cache.keep("x", "a 1", entry)
        assert (cached := cache.find("x", "a 1")) is not None and (cached.unit, cached.cubin) == ("text", b"code")
    (folder / CUBIN).unlink()
    assert cache.find("x", "a 1") is None
    assert not list(cache.folder.glob(".*"))


def test_an_unfinished_entry_is_not_seen_and_an_old_one_is_swept(tmp_path):
    cache, entry = CodeCache(tmp_path), Entry(unit="text", cubin=b"code", facts={})
    for age in (0, 7200):
        left = tmp_path / f".{age}.new"
        left.mkdir()
        (left / UNIT).write_text("half")
        os.utime(left, (time.time() - age,) * 2)
    cache.keep("x", "a 1", entry)
    assert [path.name for path in tmp_path.glob(".*")] == [".0.new"]


def test_a_cache_that_cannot_be_written_is_said_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot keep compiled code"):
        CodeCache(tmp_path / "file").keep("x", "a 1", Entry(unit="", cubin=b"", facts={}))


def _write(folder: str, number: int) -> None:
    cache = CodeCache(Path(folder))
    for at in range(1000):
        cache.keep(f"content {at % 7}", "a 1", Entry(unit=f"unit {at % 7}" * 999, cubin=b"c" * 9999, facts={"by": number}))


def test_processes_may_write_the_same_entries_and_be_killed(tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(str(tmp_path), number)) for number in range(3)]
    for writer in writers:
        writer.start()
    cache, seen, until = CodeCache(tmp_path), 0, time.monotonic() + WALL_S
    while seen < 300 and time.monotonic() < until:
        for at in range(7):
            entry = cache.find(f"content {at}", "a 1")
            seen += entry is not None
            assert entry is None or (entry.unit == f"unit {at}" * 999 and len(entry.cubin) == 9999)
    for writer in writers:
        writer.kill()
        writer.join()
    assert seen >= 300
    for folder in tmp_path.glob("[0-9a-f]*"):
        assert json.loads((folder / FACTS).read_text())["sha256"]


@needs_nvcc
def test_a_builder_answers_with_facts_or_refuses_with_words(tmp_path):
    answer = build([SMALL.name], "sm_80", str(tmp_path / "unit.cubin"), str(tmp_path / "cache"))
    assert answer["resources"][SMALL.name]["registers"] > 0
    assert json.loads(json.dumps(answer)) == answer
    assert set(answer["resources"]) == {SMALL.name, "haotuner_reduce_fp32"}
    with pytest.raises(Refusal, match="error") as refused:
        build([HOPPER.name], "sm_80", str(tmp_path / "unit.cubin"), None)
    assert (refused.value.stage, refused.value.reason) == ("build", "compile_error")


def test_a_builder_tells_no_kernel_from_a_missing_compiler(tmp_path):
    with pytest.raises(ValueError, match="no CUDA family is called nobody"):
        programs_of(["nobody__a1"])
    with pytest.raises(Refusal, match="nobody"):
        build(["nobody__a1"], "sm_80", str(tmp_path / "unit.cubin"), None)
