"""`haotuner tune MODEL.onnx` killed or stopped: a pack that serves lies there, and nothing is measured twice."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import haotuner as api
from haotuner.pack.manifest import read_manifest
from tests.cli.command import command, environment, haotuner

pytest.importorskip("onnx")
from tests.cli.test_tune_model import layers  # noqa: E402, after the skip
from tests.standin.patience import WALL_S  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*nothing was measured:UserWarning")]
ASKED = ("net.onnx", "--shapes", "batch=1..8", "--threads", "1", "--peers", "none", "--resume")


def started(cache: Path, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("tune", *ASKED, "--budget", "300s"), cwd=folder, env=environment(cache), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def ended(run: subprocess.Popen[bytes], how: int, when: Callable[[], bool]) -> int:
    """Its exit code; it is told to end as soon as ``when`` says so."""
    until = time.monotonic() + WALL_S
    while not when() and time.monotonic() < until and run.poll() is None:
        time.sleep(0.05)
    assert run.poll() is None, "it must not end by itself"
    (os.killpg if how == signal.SIGKILL else os.kill)(run.pid, how)
    run.communicate(timeout=WALL_S)
    return run.returncode


def keys_of(db: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        return [row[0] for row in connection.execute("select trial_key from record order by seq")]


def of_products(db: Path) -> int:
    try:
        return sum('"loops_' not in key for key in keys_of(db))
    except sqlite3.Error:
        return 0


def serves(pack: Path) -> bool:
    """Whether the pack's model answers; True where nothing was measured for it."""
    with api.load(pack, threads=1) as opened:
        (output,) = opened.model("net").run({"h0": np.zeros((5, 32), np.float32)}).values()
        assert output.shape == (5, 32) and np.allclose(output.sum(axis=1), 1)
    return read_manifest(pack).unverified


def test_kill_9_and_sigterm_leave_the_last_pack_and_a_resumed_run_goes_on(cache: Path, tmp_path: Path) -> None:
    layers(tmp_path / "net.onnx", 32, 48, 32)
    pack, db = tmp_path / "pack", tmp_path / "pack.records.db"
    ended(started(cache, tmp_path), signal.SIGKILL, lambda: pack.exists() and of_products(db) >= 5)
    assert serves(pack), "the first pack comes before the first measurement"
    killed = keys_of(db)
    assert len(killed) == len(set(killed)) and len(killed) > of_products(db) > 0, "groups and products"
    assert ended(started(cache, tmp_path), signal.SIGTERM, lambda: of_products(db) >= of_products_before(killed) + 20) == 3
    assert not serves(pack), "told to stop, it writes what it measured"
    stopped = keys_of(db)
    assert set(killed) <= set(stopped) and len(stopped) == len(set(stopped))
    groups = [key for key in stopped if '"loops_' in key]
    assert groups == [key for key in killed if '"loops_' in key], "no group was timed again"
    last = haotuner("tune", *ASKED, "--budget", "12s", "--json", cache=cache, cwd=tmp_path)
    assert last.code == 0, last.err
    assert last.json()["reused"] == len(stopped) and not serves(pack)
    keys = keys_of(db)
    assert len(keys) == len(set(keys)) and [key for key in keys if '"loops_' in key] == groups


def of_products_before(keys: list[str]) -> int:
    return sum('"loops_' not in key for key in keys)
