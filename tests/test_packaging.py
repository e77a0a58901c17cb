"""The sibling folders install as haotuner.microkernels and so on: from a clone, a wheel, an editable install, a zip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.standin.patience import WALL_S

ROOT = Path(__file__).resolve().parents[1]
LOOK = (
    "import haotuner, haotuner.transfer, haotuner.microkernels.cpu.dense, haotuner.hw_profiles.find as f;"
    "print(f.find_device('h200', measure=False).id, haotuner.__file__)"
)
pytest.importorskip("hatchling")  # without build isolation nothing is downloaded
pytest.importorskip("editables")
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git: not installed")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is committed, plus what is not yet, without anything that git ignores."""
    if not (ROOT / ".git").exists():
        pytest.skip("git: these tests run in a checkout")
    target = tmp_path_factory.mktemp("clone") / "haotuner"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    for name in filter(None, listed):
        source, copy = ROOT / name, target / name
        if source.is_symlink() or source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    return target


def run(*words: str, cwd: Path, path: Path | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=WALL_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def pip(*words: str, cwd: Path) -> str:
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *words, cwd=cwd)


def test_a_clone_works_where_it_lies(clone: Path) -> None:
    assert run(sys.executable, "-c", LOOK, cwd=clone).startswith("h200 ")


def built(source: Path, folder: Path) -> Path:
    """The wheel of a source tree or a source archive."""
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source), cwd=folder.parent)
    (wheel,) = folder.iterdir()
    return wheel


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(clone, tmp_path_factory.mktemp("wheel") / "dist")


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked as pip does it."""
    folder = tmp_path_factory.mktemp("site") / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_a_wheel_holds_real_files_and_works(wheel: Path, site: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for member in (
        "haotuner/microkernels/cpu/dense.py",
        "haotuner/transfer/__init__.py",
        "haotuner/hw_profiles/profiles/h200.toml",
        "haotuner/runtime/native/kinds/dense_run.c",
        "haotuner/backends/cpu/native/timing.c",
        "haotuner/microkernels/cpu/native/typed_program.h",
        "haotuner/transfer/models/README.md",
        "haotuner/py.typed",
    ):
        assert member in names
    models = [name for name in names if name.startswith("haotuner/transfer/models/")]
    assert {name.rpartition(".")[2] for name in models} >= {"txt", "json"}, "the shipped models and their provenance"
    assert not [name for name in names if name.split("/")[0] in ("transfer", "microkernels", "hw_profiles", "tests")]
    assert str(site) in run(sys.executable, "-c", LOOK, cwd=tmp_path, path=site)


def test_a_wheel_is_for_any_platform_and_holds_no_machine_code(wheel: Path, site: Path) -> None:
    """A pack brings its own library, so that a wheel needs no manylinux tag: auditwheel has nothing to look at."""
    assert wheel.name.endswith("-py3-none-any.whl")
    (facts,) = site.glob("haotuner-*.dist-info/WHEEL")
    assert "Root-Is-Purelib: true" in facts.read_text() and "Tag: py3-none-any" in facts.read_text()
    elf = [path for path in site.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    assert not elf, elf


SERVE = """
import sys
for name in ("tvm", "torch", "scipy", "sklearn", "pandas", "lightgbm", "sympy", "typer", "rich", "onnx"):
    sys.modules[name] = None  # numpy and tvm-ffi are all that a server has
import numpy, haotuner
weight, x = (numpy.random.default_rng(0).standard_normal(shape, dtype="float32") for shape in ((24, 8), (5, 8)))
with haotuner.load(sys.argv[1], threads=1) as pack:
    y = pack.op("dense_n24_k8").bind(weight)(x)
print(haotuner.__file__, abs(numpy.asarray(y) - x @ weight.T).max() < 1e-5)
"""


def test_a_wheel_serves_a_pack_where_there_is_no_compiler(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("tvm")  # builds the pack
    from tests.runtime.native_builds import c_pack
    from tests.runtime.packs import packed_op

    pack = c_pack(tmp_path / "pack", [packed_op("dense_n24_k8", 4, 8, (1,))])
    (tmp_path / "empty").mkdir()
    words = ["env", f"PATH={tmp_path / 'empty'}", sys.executable, "-W", "error", "-c", SERVE, str(pack)]
    assert run(*words, cwd=tmp_path, path=site).split() == [str(site / "haotuner/__init__.py"), "True"]


def test_a_source_archive_builds_the_same_wheel(clone: Path, wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path / "sdist"), cwd=clone)
    (archive,) = (tmp_path / "sdist").iterdir()
    again = built(archive, tmp_path / "dist")
    assert again.name == wheel.name
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_an_editable_install_points_at_the_sources(clone: Path, tmp_path: Path) -> None:
    pip("install", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site"), "-e", str(clone), cwd=tmp_path)
    (link,) = (tmp_path / "site").glob("*.pth")
    assert Path(link.read_text().strip()) == clone
    assert str(clone) in run(sys.executable, "-c", LOOK, cwd=tmp_path, path=clone)


def test_make_mends_a_zip_that_lost_its_links(clone: Path, tmp_path: Path) -> None:
    copy = tmp_path / "unzipped"
    shutil.copytree(clone, copy, symlinks=True)
    for name in ("microkernels", "transfer", "hw_profiles"):
        (copy / "haotuner" / name).unlink()
        (copy / "haotuner" / name).write_text(f"../{name}")  # what zip tools without links leave behind
    run("make", "links", cwd=copy)
    assert run(sys.executable, "-c", LOOK, cwd=copy).startswith("h200 ")
