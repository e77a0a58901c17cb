"""Packs while they live: many threads, fork, close and swap under load, counters, start of a process with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackClosed
from tests.runtime.conftest import DENSE, SMALLEST, TURNED, rows
from tests.standin.patience import WALL_S, ended

CHILD_LIMIT_S = 20  # of processors
LIGHT = {"TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}  # or `import tvm_ffi` imports torch, which takes seconds


def in_threads(count: int, work: Any) -> None:
    """Run ``work(index)`` in threads; the first error any of them met is raised."""
    problems: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


@pytest.mark.parametrize("threads", [1, 2])
def test_many_threads_call_at_once(built_pack, weight, threads):
    with haotuner.load(built_pack.path, threads=threads) as pack:
        linear = pack.op(DENSE).bind(weight)
        expected = {m: linear(rows(m)) for m in range(1, 60)}

        def work(index: int) -> None:
            for turn in range(150):
                m = 1 + (index * 7 + turn) % 59
                assert np.array_equal(linear(rows(m)), expected[m])

        in_threads(8, work)
        calls = pack.stats()[DENSE]["calls"]
        assert calls >= 8 * 150 + 59


@pytest.mark.long
def test_counters(built_pack, weight):
    script = """
        import haotuner, numpy as np, json, sys
        pack = haotuner.load(sys.argv[1], threads=7)
        linear = pack.op("dense_n100_k37").bind(np.zeros((100, 37), np.float32))
        for m in (0, 1, 2, 40, 41, 500):
            linear(np.zeros((m, 37), np.float32))
        try: linear(np.zeros((2, 36), np.float32))
        except ValueError: pass
        tuned = haotuner.load(sys.argv[1], threads=2).op("dense_n1_k1").bind(np.zeros((1, 1), np.float32))
        tuned(np.zeros((2, 1), np.float32))
        print(json.dumps(pack.stats()))
    """
    import json

    answer = json.loads(fresh(script, str(built_pack.path)).stdout)
    assert answer[DENSE] == {"calls": 6, "fallbacks": 5, "out_of_range": 3}  # a refused call is none; m = 0 needs no plan
    assert answer[SMALLEST] == {"calls": 1, "fallbacks": 0, "out_of_range": 0}
    assert answer[TURNED] == {"calls": 0, "fallbacks": 0, "out_of_range": 0}


def fresh(script: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own; its error output is shown if it fails."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments],
        capture_output=True, text=True, timeout=WALL_S, check=False, env={**os.environ, **LIGHT}, **options,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    return done


def test_only_the_base_install_is_needed(built_pack):
    """Tuning's and benchmarks' packages cannot be imported here; serving does not miss them."""
    script = """
        import sys
        BLOCKED = {"tvm", "lightgbm", "pandas", "typer", "rich", "sklearn", "scipy", "torch", "pynvml"}
        class Wall:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in BLOCKED: raise ImportError(f"{name} is not installed")
        sys.meta_path.insert(0, Wall())
        import haotuner, numpy as np
        from haotuner.pack.__main__ import main
        pack = haotuner.load(sys.argv[1])
        w = np.random.default_rng(0).standard_normal((100, 37), dtype=np.float32)
        x = np.random.default_rng(1).standard_normal((9, 37), dtype=np.float32)
        assert np.allclose(pack.op("dense_n100_k37").bind(w)(x), x @ w.T, atol=1e-4)
        assert not BLOCKED & {name.partition(".")[0] for name in sys.modules}, BLOCKED & set(sys.modules)
        loaded = {line.split()[-1] for line in open("/proc/self/maps") if "tvm" in line}
        assert not [path for path in loaded if "libtvm.so" in path or "libtvm_runtime" in path], loaded
        assert main(["verify", sys.argv[1]]) == 0
    """
    fresh(script, str(built_pack.path))


def test_import_alone_loads_nothing_heavy():
    fresh("import sys, haotuner; assert not {'numpy', 'tvm_ffi', 'tvm', 'torch'} & set(sys.modules)")


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_fork_after_use(built_pack, weight, threads):
    """As gunicorn's preload does: children serve with pools of their own, the parent goes on."""
    with haotuner.load(built_pack.path, threads=threads) as pack:
        linear = pack.op(DENSE).bind(weight)
        x = rows(300)
        before = linear(x)
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                os._exit(0 if all(np.array_equal(linear(x), before) for _ in range(20)) else 1)
            children.append(child)
        assert np.array_equal(linear(x), before)
        assert [ended(child, CHILD_LIMIT_S) for child in children] == [0, 0, 0]
        assert np.array_equal(linear(x), before)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_fork_while_other_threads_call(built_pack, weight):
    with haotuner.load(built_pack.path, threads=3) as pack:
        linear = pack.op(DENSE).bind(weight)
        x = rows(120)
        before = linear(x)
        stop = threading.Event()

        def busy() -> None:
            while not stop.is_set():
                linear(x)

        callers = [threading.Thread(target=busy) for _ in range(3)]
        for caller in callers:
            caller.start()
        try:
            for _ in range(15):
                child = os.fork()
                if child == 0:
                    os._exit(0 if all(np.array_equal(linear(x), before) for _ in range(5)) else 1)
                assert ended(child, CHILD_LIMIT_S) == 0
        finally:
            stop.set()
            for caller in callers:
                caller.join()


def test_close(built_pack, weight):
    pack = haotuner.load(built_pack.path)
    linear = pack.op(DENSE).bind(weight)
    pack.close()
    pack.close()
    for use in (lambda: linear(rows(2)), lambda: linear(rows(2), out=np.empty((2, 100), np.float32)), pack.stats,
                lambda: pack.op(DENSE).bind(weight), lambda: linear.bare_call(rows(2), None), pack.library):  # fmt: skip
        with pytest.raises(PackClosed, match="closed"):
            use()


@pytest.mark.parametrize("threads", [1, 2])
def test_close_while_calls_run(built_pack, weight, threads):
    """Every call either finishes right or raises PackClosed."""
    for _ in range(5):
        pack = haotuner.load(built_pack.path, threads=threads)
        linear = pack.op(DENSE).bind(weight)
        expected = {m: linear(rows(m)) for m in (1, 30, 500)}
        served: list[int] = []

        def work(index: int, linear: Any = linear, expected: Any = expected, served: list[int] = served) -> None:
            m = (1, 30, 500)[index % 3]
            x, out = rows(m), np.empty((m, 100), np.float32)
            while True:
                try:
                    linear(x, out=out)
                except PackClosed:
                    return
                assert np.array_equal(out, expected[m])
                served.append(m)

        timer = threading.Timer(0.1, pack.close)
        timer.start()
        in_threads(6, work)
        timer.join()
        assert served


@pytest.mark.parametrize(("limit", "cores"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1)])
def test_load_uses_no_more_threads_than_the_quota_pays(built_pack, tmp_path, monkeypatch, limit, cores):
    """A container with --cpus=2 on 64 cores: more threads are stopped for most of every period."""
    from haotuner.host import processor
    from haotuner.runtime import pack as module

    for name, text in (("proc/self/cgroup", "0::/box\n"), ("sys/fs/cgroup/box/cpu.max", limit)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert processor.cpu_quota(tmp_path / "proc", tmp_path / "sys") == (None if cores == 8 else int(limit[:6]) / 1e5)
    assert processor.usable_cores(tmp_path / "proc", tmp_path / "sys") == cores
    monkeypatch.setattr(module, "usable_cores", lambda: processor.usable_cores(tmp_path / "proc", tmp_path / "sys"))
    with haotuner.load(built_pack.path) as pack:
        assert pack.threads == min(cores, 3)  # the most that it was tuned for


def test_pools_do_not_grow_with_packs_opened_and_closed(built_pack, weight):
    def count() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    x = rows(200)
    with haotuner.load(built_pack.path, threads=3) as pack:
        pack.op(DENSE).bind(weight)(x)
    before = count()
    for _ in range(10):
        with haotuner.load(built_pack.path, threads=3) as pack:
            pack.op(DENSE).bind(weight)(x)
    assert count() <= before + 2


@pytest.mark.long
def test_calls_at_interpreter_exit(built_pack):
    script = """
        import atexit, sys, haotuner, numpy as np
        pack = haotuner.load(sys.argv[1], threads=3)
        linear = pack.op("dense_n100_k37").bind(np.ones((100, 37), np.float32))
        linear(np.ones((300, 37), np.float32))
        atexit.register(lambda: print(float(linear(np.ones((300, 37), np.float32))[0, 0])))
        class Late:
            def __del__(self, linear=linear, x=np.ones((300, 37), np.float32)): linear(x)
        sys.modules["late"] = Late()
    """
    assert fresh(script, str(built_pack.path)).stdout.strip() == "37.0"


def test_a_call_in_a_signal_handler(built_pack, weight):
    """Python runs handlers between bytecodes, so a call may be interrupted by another one in the same thread."""
    import signal

    with haotuner.load(built_pack.path, threads=2) as pack:
        linear = pack.op(DENSE).bind(weight)
        x, seen = rows(50), []
        before = linear(x)
        old = signal.signal(signal.SIGALRM, lambda *_: seen.append(np.array_equal(linear(x), before)))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            while len(seen) < 50:
                assert np.array_equal(linear(x), before)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        assert all(seen)


def test_no_file_descriptors_left(built_pack):
    """Loading says what is wrong; a pack that is open serves on, and loading works again afterwards."""
    script = """
        import os, resource, sys, haotuner, numpy as np
        from haotuner.errors import HaotunerError
        pack = haotuner.load(sys.argv[1], threads=2)
        linear = pack.op("dense_n100_k37").bind(np.ones((100, 37), np.float32))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        try: haotuner.load(sys.argv[1])
        except HaotunerError as error: assert "Too many open files" in str(error), error
        else: raise AssertionError("a pack was opened without a descriptor")
        assert (linear(np.ones((50, 37), np.float32)) == 37).all()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        haotuner.load(sys.argv[1]).close()
    """
    fresh(script, str(built_pack.path))


def test_no_threads_can_be_started(built_pack):
    """The caller then computes alone."""
    script = """
        import resource, sys, haotuner, numpy as np
        pack = haotuner.load(sys.argv[1], threads=3)
        linear = pack.op("dense_n100_k37").bind(np.ones((100, 37), np.float32))
        with open("/proc/self/statm") as stream: pages = int(stream.read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (128 << 10), resource.RLIM_INFINITY))  # under one stack
        out = np.zeros((30, 100), np.float32)
        x = np.ones((30, 37), np.float32)
        for _ in range(3): linear(x, out=out)
        assert (out == 37).all()
        import os
        assert len(os.listdir("/proc/self/task")) <= 2
    """
    fresh(script, str(built_pack.path))
