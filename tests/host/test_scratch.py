"""Scratch folders: gone at the end, and after a kill gone with the next start."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from haotuner.host.files import PREFIX, scratch_folder

HOLD = """
import sys
from haotuner.host.files import scratch_folder
with scratch_folder() as folder:
    (folder / "inner").mkdir()
    (folder / "inner" / "big").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def scratch_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def holder() -> tuple[subprocess.Popen[str], Path]:
    run = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    return run, Path(run.stdout.readline().strip())


def test_a_folder_is_private_and_gone_at_the_end(scratch_root: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch_folder() as folder:
        assert folder.parent == scratch_root and folder.stat().st_mode & 0o777 == 0o700
        raise ZeroDivisionError
    assert not list(scratch_root.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next(scratch_root: Path) -> None:
    run, left = holder()
    run.kill()
    run.communicate()
    assert (left / "inner" / "big").exists()
    with scratch_folder():
        assert not left.exists()


def test_what_a_living_process_holds_and_what_is_no_scratch_stays(scratch_root: Path) -> None:
    run, live_folder = holder()
    (scratch_root / f"{PREFIX}thesis").mkdir()
    (scratch_root / f"{PREFIX}link").symlink_to(live_folder)
    (scratch_root / f"{PREFIX}file").write_text("mine")
    with scratch_folder():
        assert live_folder.exists() and (live_folder / "inner" / "big").exists()
    assert {p.name for p in scratch_root.iterdir()} == {
        live_folder.name,
        f"{PREFIX}thesis",
        f"{PREFIX}link",
        f"{PREFIX}file",
    }
    run.communicate("")
    assert not live_folder.exists()
