"""A tuning run that is killed or interrupted loses at most the measurement in flight."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.command import command, environment, haotuner
from tests.standin.patience import WALL_S

LONGER = ("--op", "dense:n=64,k=64", "--shapes", "m=1..64", "--peers", "none", "--threads", "1")
TIME = ("--budget", "300s")  # of a run that is to be killed: it must not end by itself


def count(db: Path) -> int:
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        return int(connection.execute("select count(*) from record").fetchone()[0])


def started(cache: Path, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("tune", *LONGER, *TIME, "--resume"), cwd=folder, env=environment(cache), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def wait_for(db: Path, rows: int, run: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + WALL_S
    while time.monotonic() < until and run.poll() is None:
        if db.exists():
            try:
                if count(db) >= rows:
                    return
            except sqlite3.Error:
                pass
        time.sleep(0.05)


@pytest.mark.parametrize("moments", [(9,), pytest.param((1, 5, 9), marks=pytest.mark.long)], ids=["once", "three times"])
def test_kill_9_then_resume(cache: Path, tmp_path: Path, moments: tuple[int, ...]) -> None:
    db, seen = tmp_path / "pack.records.db", 0
    for more in moments:
        run = started(cache, tmp_path)
        wait_for(db, seen + more, run)
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        assert run.stderr is not None
        run.stderr.close()
        now = count(db)
        assert now >= seen
        seen = now
    keys = _keys(db)
    assert len(keys) == len(set(keys)), "a trial was measured twice"
    answer = haotuner("tune", *LONGER, "--budget", "2s", "--resume", "--json", cache=cache, cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert answer.json()["reused"] == seen
    keys = _keys(db)
    assert len(keys) == len(set(keys)), "a trial was measured twice"
    assert json.loads((tmp_path / "pack" / "manifest.json").read_text())["schema"] == 2


def _keys(db: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        return [row[0] for row in connection.execute("select trial_key from record")]


@pytest.mark.long
def test_one_interrupt_writes_a_pack_and_ends_with_3(cache: Path, tmp_path: Path) -> None:
    run = started(cache, tmp_path)
    wait_for(tmp_path / "pack.records.db", 6, run)
    os.kill(run.pid, signal.SIGINT)
    _, err = run.communicate(timeout=WALL_S)
    assert run.returncode == 3, err.decode()
    assert b"Traceback" not in err
    assert haotuner("verify", "pack", "--json", cache=cache, cwd=tmp_path).json() == {"ok": True, "problems": []}
