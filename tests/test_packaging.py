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


def test_a_wheel_holds_real_files_and_works(clone: Path, tmp_path: Path) -> None:
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path / "dist"), str(clone), cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    for wanted in (
        "haotuner/microkernels/cpu/dense.py",
        "haotuner/transfer/__init__.py",
        "haotuner/hw_profiles/profiles/h200.toml",
        "haotuner/runtime/native/kinds/dense_run.c",
        "haotuner/backends/cpu/native/timing.c",
        "haotuner/microkernels/cpu/native/typed_program.h",
        "haotuner/transfer/models/README.md",
        "haotuner/py.typed",
    ):
        assert wanted in names
    models = [name for name in names if name.startswith("haotuner/transfer/models/")]
    assert {name.rpartition(".")[2] for name in models} >= {"txt", "json"}, "the shipped models and their provenance"
    assert not [name for name in names if name.split("/")[0] in ("transfer", "microkernels", "hw_profiles", "tests")]
    assert str(tmp_path / "site") in run(sys.executable, "-c", LOOK, cwd=tmp_path, path=tmp_path / "site")


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
