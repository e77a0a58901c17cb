"""Parts of the GPU bundle: its state, its tasks as processes, what is compiled ahead, and the archive."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from haotuner.backends.cuda.compiler import Compiled
from haotuner.backends.cuda.processes import build
from haotuner.errors import NothingLegal, UsageError
from haotuner.microkernels.cuda.families import DENSE_FAMILIES
from haotuner.spec.op import Op
from tests.bench.gpu_bundle import running, start
from tests.bench.gpu_bundle.build import assemble, pack
from tests.bench.gpu_bundle.candidates import EDGES, choose, first, fits, profile_of
from tests.bench.gpu_bundle.correctness import op_of, read
from tests.bench.gpu_bundle.stages import RunContext, Task, commanded
from tests.bench.gpu_bundle.state import BEGUN, DONE, TRIES, State
from tests.bench.gpu_bundle.suites import FULL, TINY
from tests.bench.gpu_bundle.wheels import PACKAGES
from tests.standin import ROOT


class Copying:
    """A compiler whose cubins are its sources."""

    name = "copied 1"

    def __init__(self) -> None:
        self.calls = 0

    def builds_for(self, arch: str) -> bool:
        return True

    def compile(self, source: str, arch: str, flags: Sequence[str] = ()) -> Compiled:
        self.calls += 1
        facts = {"registers": 32.0, "stack_bytes": 0.0, "spill_bytes": 0.0, "static_shared_bytes": 0.0}
        symbols = re.findall(r"(\w+)\(", source)
        return Compiled(cubin=source.encode(), resources=dict.fromkeys(symbols, facts))


def test_the_state_survives_and_a_task_that_was_broken_off_too_often_is_given_up(tmp_path):
    state = State(tmp_path)
    state.begin("tune/a")
    state.end("tune/a", DONE, 1.23)
    state.begin("tune/b")
    again = State(tmp_path)
    assert again.over("tune/a") and not again.over("tune/b") and not again.over("tune/c")
    assert dict(again.items())["tune/b"].status == BEGUN
    for _ in range(TRIES - 1):
        again.begin("tune/b")
    assert State(tmp_path).over("tune/b")
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(UsageError, match="name another --out"):
        State(tmp_path)


class Late:
    """A clock that jumps once a program says that it is ready for it, however long a busy machine takes to start one."""

    sleep = staticmethod(time.sleep)

    def __init__(self, ready: Path) -> None:
        self._ready = ready

    def monotonic(self) -> float:
        return time.monotonic() + (1e5 if self._ready.exists() else 0)


def test_a_task_that_is_late_is_asked_to_end_and_its_output_kept(tmp_path, monkeypatch):
    handles = "import pathlib,signal,sys,time; signal.signal(15, {})"
    waits = "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    code = f"{handles.format('lambda *_: sys.exit(3)')}; print('all', flush=True); {waits}"
    monkeypatch.setattr(running, "time", Late(tmp_path / "heeds"))
    command = [sys.executable, "-c", code, str(tmp_path / "heeds")]
    heeds = running.run(command, tmp_path / "o.txt", os.environ, limit_s=1e4, stopped=lambda: False)
    assert heeds.late and heeds.code == 3 and (tmp_path / "o.txt").read_text() == "all\n"
    monkeypatch.setattr(running, "time", Late(tmp_path / "deaf"))
    command = [sys.executable, "-c", f"{handles.format('signal.SIG_IGN')}; {waits}", str(tmp_path / "deaf")]
    deaf = running.run(command, tmp_path / "d.txt", os.environ, limit_s=1e4, stopped=lambda: False, grace_s=0.3)
    assert deaf.late and deaf.code == -9 and deaf.seconds < 1e5 + 60 and not (tmp_path / "d.txt").exists()
    monkeypatch.undo()
    ended = running.run([sys.executable, "-c", "1/0"], tmp_path / "e.txt", os.environ, limit_s=20, stopped=lambda: False)
    assert not ended.late and ended.code == 1 and "ZeroDivisionError" in ended.said


def test_time_is_shared_among_what_is_left(tmp_path):
    context = RunContext(root=tmp_path, out=tmp_path, device="cuda:0", driver="real", against="torch")
    task = Task(stage="tune", name=FULL.works[0].name, command=("haotuner",))
    command, limit = commanded(task, FULL, context, 1000.0, 10)
    assert command[command.index("--budget") + 1] == "80s" and "--resume" in command and 80 < limit <= 1000
    command, _ = commanded(task, FULL, context, 30.0, 10)
    assert command[command.index("--budget") + 1] == "20s"
    race, _ = commanded(Task(stage="race", name=task.name), FULL, context, 1e6, 1)
    assert race[race.index("--seconds-per-row") + 1] == "3.00" and race[race.index("--peers") + 1] == "torch"


def test_a_torn_line_of_answers_is_taken_off(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"b"')
    assert read(path) == [{"a": 1}] and path.read_text() == '{"a": 1}\n'


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_86"])
def test_it_checks_as_many_kernels_as_asked_for_each_once_and_all_fit(arch):
    device = profile_of(arch)
    choices = choose(device, 100)
    assert len({choice.kernel.name for choice in choices}) == len(choices) == 100
    assert all(fits(choice.family, choice.kernel, device) and choice.family.runs_on(device) for choice in choices)
    assert all(choice.family.serves(op_of(choice)) for choice in choices)
    floats = {family.name for family in DENSE_FAMILIES if family.runs_on(device) and family.dtype != "int8"}
    assert {choice.family.name for choice in choices} == floats
    for family in {choice.family for choice in choices}:
        ours = [choice.kernel for choice in choices if choice.family is family]
        specs = [f"dense:n=2304,k={depth},weight={weight},dtype={family.dtype}" for depth, weight in EDGES]
        edges = [op for op in map(Op.parse, specs) if family.serves(op) and any(family.points(op, device))]
        assert len(ours) > len(edges), "narrow loads and the other layout among them, where the family has them"


def test_an_architecture_without_a_profile_or_a_family_says_so():
    with pytest.raises(NothingLegal, match="no hardware profile of architecture sm_99"):
        profile_of("sm_99")
    with pytest.raises(NothingLegal, match="no CUDA family runs on sm_70"):
        choose(profile_of("sm_70"), 10)


def test_first_candidates_are_of_every_family_that_serves_the_op():
    kernels = first(profile_of("sm_80"), Op.parse("dense_n768_k768_fp16"), 128, 2)
    assert {choice.family.dtype for choice in kernels} == {"fp16"} and len({choice.family.name for choice in kernels}) >= 2


def test_a_bundle_holds_the_project_the_suite_and_the_code_and_compiles_once(tmp_path, monkeypatch):
    root, compiler = tmp_path / "work", Copying()
    monkeypatch.setattr(
        "tests.bench.gpu_bundle.build._kernels_to_compile", lambda arch, suite, kernels: choose(profile_of(arch), 9)[:2]
    )
    for _ in range(2):
        assemble(root, ["sm_80"], TINY, kernels=1, jobs=1, say=print, compiler=compiler)
    assert compiler.calls == 2 + 2, "the driver suite's code twice, two kernels once"
    kernel = choose(profile_of("sm_80"), 9)[0].kernel.name
    cache = str(root / "cache" / "haotuner" / "device-code")
    result = build([kernel], "sm_80", str(tmp_path / "k.cubin"), cache, compiler=None)
    assert result["compiler"] == "copied 1", "what a tuner asks for is found, without a compiler"
    (archive,) = pack(root, tmp_path / "out" / "b.tar.xz")
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
    assert {name.partition("/")[0] for name in names} == {"gpu_bundle"}
    for part in ("gpu_run.py", "project/haotuner/microkernels/index.py", "project/tests/contract/driver_process.py",
                 "project/tests/bench/gpu_bundle/run.py", "driver/driver_kernels-sm_80/unit.cubin"):  # fmt: skip
        assert f"gpu_bundle/{part}" in names
    assert sum(name.endswith("unit.cubin") and "device-code" in name for name in names) == 2
    parts = pack(root, tmp_path / "out" / "b.tar.xz", volume_bytes=200_000)
    assert len(parts) > 1 and not archive.exists()
    joined = tmp_path / "joined.tar.xz"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(joined) as tar:
        assert set(tar.getnames()) == names


def test_another_python_than_the_wheels_are_for_is_said_in_a_line(tmp_path):
    shutil.copy(Path(start.__file__), tmp_path / "gpu_run.py")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "numpy-9.0-cp399-cp399-manylinux_2_28_x86_64.whl").write_bytes(b"")
    done = subprocess.run([sys.executable, str(tmp_path / "gpu_run.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 4 and done.stderr.count("\n") == 1
    assert "packages are for Python 3.99, this is 3." in done.stderr and "run it with python3.99, or build it" in done.stderr


def test_the_wheels_are_all_that_tuning_on_a_gpu_asks_for():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    required = {re.split(r"[<>=;\[]", text)[0] for text in (*extras["tune"], *extras["cuda"])} - {"haotuner"}
    assert required <= {re.split(r"[<>=]", text)[0] for text in PACKAGES}
