"""A run that is told to stop: what is measured becomes a pack at once, and what is not known is not told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.command import command, environment, haotuner
from tests.cli.test_kill import wait_for
from tests.standin.patience import WALL_S

TWO = ("--op", "dense:n=64,k=64", "--op", "dense:n=96,k=64", "--shapes", "m=1..512", "--peers", "none")


def begun(cache: Path, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("tune", *TWO, "--budget", "600s", *words), cwd=folder, env=environment(cache), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


@pytest.mark.long
def test_an_op_that_was_not_measured_has_no_regret_and_shares_the_kernels(cache: Path, tmp_path: Path) -> None:
    run = begun(cache, tmp_path, "--json", "--threads", "1")
    wait_for(tmp_path / "pack.records.db", 12, run)
    os.kill(run.pid, signal.SIGTERM)
    out, err = run.communicate(timeout=WALL_S)
    assert run.returncode == 3, err.decode()
    measured, other = json.loads(out)["ops"]
    assert measured["measured"] > 0 and other["measured"] == 0
    assert other["regret_mean"] is None and other["regret_max"] is None and other["regret_cover"] is None
    assert set(other["kernels"]) <= set(measured["kernels"]), "nothing more was compiled for it"
    assert "calls of more than" in json.loads(out)["verification"]["why"]
    shown = haotuner("inspect", "pack", cache=cache, cwd=tmp_path)
    line = next(line for line in shown.out.splitlines() if line.startswith("dense_n96_k64"))
    assert line.split()[-2:] == ["-", "-"]
    assert haotuner("verify", "pack", "-q", cache=cache, cwd=tmp_path).code == 0
    explained = haotuner("explain", "pack", "--op", "dense_n96_k64", "--shape", "m=7", cache=cache, cwd=tmp_path)
    assert explained.code == 0, explained.err


def test_before_the_first_op_there_is_no_pack_to_write(cache: Path, tmp_path: Path) -> None:
    run = begun(cache, tmp_path)
    assert run.stderr is not None
    run.stderr.readline()  # what is going to be tuned: the handlers are there soon after
    until = time.monotonic() + WALL_S
    while b"\0tune" not in Path(f"/proc/{run.pid}/cmdline").read_bytes() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(run.pid, signal.SIGTERM)
    _, err = run.communicate(timeout=WALL_S)
    if (tmp_path / "pack").exists():  # a fast machine has begun
        assert run.returncode == 3
    else:
        assert run.returncode == 6 and b"before there was a pack" in err, err.decode()
    assert b"Traceback" not in err


@pytest.mark.long
def test_a_second_signal_stops_at_once(cache: Path, tmp_path: Path) -> None:
    run = begun(cache, tmp_path)
    wait_for(tmp_path / "pack.records.db", 3, run)
    os.kill(run.pid, signal.SIGTERM)
    time.sleep(0.2)
    os.kill(run.pid, signal.SIGTERM)
    _, err = run.communicate(timeout=WALL_S)
    assert run.returncode == (3 if (tmp_path / "pack").exists() else 6) and b"Traceback" not in err, err.decode()


PHASES = {
    "searching": b"searching kernels",
    "building": b"building",
    "checking": b"checking what it",
    "racing": b"racing against",
}
SHORT = ("--op", "dense:n=64,k=64", "--shapes", "m=1..64", "--threads", "1", "--budget", "3s", "--peers", "numpy")


@pytest.mark.parametrize(
    "phase, number",
    [
        pytest.param("building", signal.SIGINT, marks=pytest.mark.slow),
        ("checking", signal.SIGTERM),
        pytest.param("searching", signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param("building", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("checking", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("racing", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_the_process_group_leaves_a_valid_pack(cache: Path, tmp_path: Path, phase: str, number: int) -> None:
    """As a terminal, `timeout` and a service manager send it: to the compiler, the checker and the peers as well."""
    longer = ("--budget", "60s") if phase == "searching" else ()  # progress is said once in some seconds
    words = command("tune", *SHORT, *longer)
    run = subprocess.Popen(
        words, cwd=tmp_path, env=environment(cache), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert run.stderr is not None
    for line in run.stderr:
        if PHASES[phase] in line:
            break
    time.sleep(0.3)  # into the phase
    os.killpg(run.pid, number)
    _, err = run.communicate(timeout=WALL_S)
    assert run.returncode == 3 and b"Traceback" not in err, err.decode()
    assert haotuner("verify", "pack", "-q", cache=cache, cwd=tmp_path).code == 0


@pytest.mark.slow
def test_stopped_at_once_beside_an_earlier_pack_says_that_it_is_none_of_this_run(cache: Path, tmp_path: Path) -> None:
    assert haotuner("tune", *SHORT[:6], "--zero-measure", cache=cache, cwd=tmp_path).code == 3
    run = begun(cache, tmp_path)
    wait_for(tmp_path / "pack.records.db", 3, run)
    os.killpg(run.pid, signal.SIGTERM)
    time.sleep(0.2)
    os.killpg(run.pid, signal.SIGTERM)
    _, err = run.communicate(timeout=WALL_S)
    assert run.returncode == 6 and b"of an earlier run" in err, err.decode()
