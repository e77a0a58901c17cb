"""The bundle's builder without a compiler: what it chooses, what it keeps for the next build, what its manifest says."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from haotuner.bundle import build, libraries, manifest, suites
from haotuner.bundle.build import assemble, pack
from haotuner.bundle.candidates import Choice, choose, fits, profile_of
from haotuner.bundle.manifest import Bundle
from haotuner.bundle.suites import TINY
from haotuner.errors import EnvironmentMissing, HaotunerError, NothingLegal, PackInvalid


@dataclass
class Copying:
    """A compiler whose libraries are its sources."""

    release: str = "copied"
    calls: list[str] = field(default_factory=list)
    fails_at: int = -1

    def kernels(self, source: str, library: Path, arch: str) -> Mapping[str, Mapping[str, float]]:
        if len(self.calls) == self.fails_at:
            raise HaotunerError("the compiler was stopped")
        self.calls.append(library.name)
        library.write_text(source)
        return {"cuda_simt_fp32__bm32_bn64_bk8_tm4_tn4_v4_kn0": {"registers": 61.0}}

    def probe(self, library: Path, arch: str) -> None:
        library.write_text(f"probe for {arch}")


@pytest.fixture(autouse=True)
def quick_sources(monkeypatch):
    """Sources that name their kernels; TVM would take 0.2 s for each."""
    monkeypatch.setattr(libraries, "cuda_source", lambda programs, arch: f"{arch} " + " ".join(programs))


def chosen(count: int) -> list[Choice]:
    return choose(profile_of("sm_80"), count)


def built(root: Path, compiler: Copying, count: int = 18) -> Bundle:
    return assemble(root, {"sm_80": chosen(count)}, TINY, compiler, jobs=1, with_wheels=False, say=lambda line: None)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_86", "sm_100a"])
def test_it_chooses_as_many_as_asked_for_each_once_and_all_fit(arch):
    device = profile_of(arch)
    found = choose(device, 200)
    assert len({choice.kernel.name for choice in found}) == len(found) == 200
    assert all(fits(choice.family, choice.kernel, device) and choice.family.runs_on(device) for choice in found)
    assert {choice.kernel["v"] for choice in found if choice.family.name == "cuda_mma_fp16"} == {8, 2, 1}
    assert any(choice.kernel["kn"] for choice in found)


def test_every_tile_has_a_kernel_before_any_has_a_second():
    plain = [c.kernel for c in chosen(60) if c.family.name == "cuda_simt_fp32" and c.kernel["v"] == 4 and not c.kernel["kn"]]
    tiles = Counter((kernel["bm"], kernel["bn"]) for kernel in plain)
    assert len(tiles) == 18 and len(plain) > 18
    assert max(tiles.values()) == 2


def test_an_architecture_without_a_profile_or_a_family_says_so():
    with pytest.raises(NothingLegal, match="no hardware profile of architecture sm_99"):
        profile_of("sm_99")
    with pytest.raises(NothingLegal, match="no CUDA family runs on sm_70"):
        choose(profile_of("sm_70"), 10)


def test_a_build_of_the_same_sources_compiles_nothing_again(tmp_path):
    first, second = Copying(), Copying()
    before = built(tmp_path / "work", first)
    again = built(tmp_path / "work", second)
    assert first.calls == ["kernels00.so", "kernels01.so", "kernels02.so"] and second.calls == []
    assert again.kernels == before.kernels and again.name == before.name
    assert manifest.read(tmp_path / "work").kernels == before.kernels


def test_a_build_that_was_broken_off_goes_on(tmp_path):
    with pytest.raises(HaotunerError, match="stopped"):
        built(tmp_path / "work", Copying(fails_at=1))
    later = Copying()
    built(tmp_path / "work", later)
    assert "kernels00.so" not in later.calls and later.calls


def test_what_changed_is_compiled_again_and_what_is_left_over_goes(tmp_path):
    root = tmp_path / "work"
    built(root, Copying(), count=32)
    (root / "lib" / "sm_80" / "kernels01.so").write_text("damaged")
    (root / "lib" / "sm_75").mkdir()
    (root / "lib" / "sm_75" / "kernels00.so").write_text("of another build")
    (root / "notes.txt").write_text("of nobody")
    again = Copying()
    built(root, again, count=32)
    assert again.calls == ["kernels01.so"]
    assert not (root / "lib" / "sm_75").exists() and not (root / "notes.txt").exists()
    bundle = built(root, Copying(), count=21)
    units = [f"kernels{number:02}.so" for number in range(3)]
    assert sorted(path.name for path in (root / "lib" / "sm_80").iterdir()) == [*units, "probe.so"]
    assert len(bundle.kernels["sm_80"]) == 23
    newer = Copying(release="copied again")
    built(root, newer, count=21)
    assert len(newer.calls) == 3  # another toolkit, other code


def test_the_archive_holds_one_folder_and_has_a_limit(tmp_path, monkeypatch):
    built(tmp_path / "work", Copying(), count=10)
    size = pack(tmp_path / "work", tmp_path / "out" / "b.tar.xz")
    with tarfile.open(tmp_path / "out" / "b.tar.xz") as tar:
        names = tar.getnames()
    assert {name.partition("/")[0] for name in names} == {"gpu_bundle"}
    assert {"gpu_bundle/gpu_run.py", "gpu_bundle/manifest.json", "gpu_bundle/suites.json"} <= set(names)
    monkeypatch.setattr(build, "LIMIT_BYTES", size - 1)
    with pytest.raises(HaotunerError, match="build with fewer --kernels"):
        pack(tmp_path / "work", tmp_path / "out" / "b.tar.xz")


IMPORT_ALL = """
import importlib, sys
from pathlib import Path
root = Path(sys.argv[1])
sys.path.insert(0, str(root))
absent = ("tvm", "torch", "triton", "scipy", "pandas", "sklearn", "lightgbm", "pynvml", "typer", "rich")
sys.modules.update(dict.fromkeys(absent))
for path in sorted(root.rglob("haotuner/**/*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    if name != "haotuner.bundle.peer_triton_kernel":  # imported where triton is
        assert importlib.import_module(name).__file__ == str(path), name
        print(name)
"""


def test_all_that_runs_on_the_gpu_machine_is_carried(tmp_path):
    """Every module can be imported from the bundle alone, beside tvm-ffi and numpy."""
    root = built(tmp_path / "work", Copying(), count=10).root
    done = subprocess.run([sys.executable, "-P", "-c", IMPORT_ALL, str(root)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"haotuner.bundle.run", "haotuner.bundle.worker", "haotuner.isolate.program"} <= set(done.stdout.split())


def test_every_file_is_hashed_and_the_compilers_report_is_kept(tmp_path):
    bundle = built(tmp_path / "work", Copying(), count=10)
    fields = json.loads((tmp_path / "work" / "manifest.json").read_text())
    there = {str(p.relative_to(bundle.root)) for p in bundle.root.rglob("*") if p.is_file()} - {"manifest.json"}
    assert set(fields["files"]) == there
    (tmp_path / "work" / "lib" / "sm_80" / "probe.so").unlink()
    with pytest.raises(PackInvalid, match=r"probe\.so is missing; unpack the archive again"):
        manifest.read(tmp_path / "work")
    assert suites.read(bundle.root) == TINY


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 9), "sm_86"), ((9, 0), "sm_90a"), ((7, 5), None), ((10, 0), None)],
)
def test_code_runs_on_its_own_and_later_minors_of_a_capability(capability, arch):
    bundle = Bundle(
        root=Path(), name="n", judge="j", version="v", toolkit="t", probes={}, built="b",
        kernels={"sm_80": (), "sm_86": (), "sm_90a": ()}, device_names={"nvidia h200": "h200"},
    )  # fmt: skip
    if arch is None:
        with pytest.raises(EnvironmentMissing, match="the bundle holds code for sm_80, sm_86, sm_90a; build one"):
            bundle.arch_for(*capability)
    else:
        assert bundle.arch_for(*capability) == arch
    assert bundle.device_id(" NVIDIA H200 ") == "h200"
    assert bundle.device_id("NVIDIA Graphics Device (engineering)") == "nvidia-graphics-device-engineering"
