"""Measured rates: the program itself, the cache around it, and everything that can go wrong with either."""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from haotuner.hw_profiles import cpu
from haotuner.hw_profiles.cpu import cpu_rates, find_compiler
from haotuner.hw_profiles.cpu_peak import CpuPeak, NotMeasured, peak_of
from haotuner.hw_profiles.isa import ISAS, Isa, parse_cpuinfo
from haotuner.hw_profiles.topology import Host, topology
from tests.hw_profiles.hw_machines import EPYC, machine

CALM = CpuPeak(
    clock_mhz=3000.0,
    fma_per_cycle=1.97,
    peak_gflops_unit=190.0,
    peak_gflops=370.0,
    memory_gbps_unit=20.0,
    memory_gbps=35.0,
    spread=0.02,
)
BUSY = replace(CALM, spread=0.3, peak_gflops_unit=120.0, memory_gbps=40.0, fma_per_cycle=1.4)


def ask(
    tmp_path: Path,
    *,
    compiler: str | None,
    cache: str | None = "cache",
    measure: bool = True,
    isa: Isa = ISAS[0],
    cpus: int = 2,
    limit_s: float = 20.0,
) -> CpuPeak | NotMeasured:
    """Rates of the made-up machine; ``compiler`` is a script that leaves a program behind."""
    host = machine(tmp_path / "machine", cpus=cpus)
    cache_dir = None if cache is None else tmp_path / cache
    info = parse_cpuinfo(EPYC)
    return peak_of(
        info=info,
        isa=isa,
        topology=topology(host),
        compiler=compiler,
        cache_dir=cache_dir,
        measure=measure,
        limit_s=limit_s,
    )


def compiler_of(tmp_path: Path, *programs: str) -> tuple[str, Callable[[], int]]:
    """A stand-in for cc: its n-th run leaves the n-th program (the last one from then on); counts its runs."""
    folder = tmp_path / "cc"
    folder.mkdir()
    for index, program in enumerate(programs):
        (folder / f"program{index}").write_text(f"#!/bin/sh\n{program}\n")
    script = folder / "cc"
    script.write_text(
        f"""#!/bin/sh
echo run >> {folder}/runs
count=$(($(wc -l < {folder}/runs) - 1))
[ $count -lt {len(programs)} ] || count={len(programs) - 1}
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
cp {folder}/program$count $out && chmod +x $out
"""
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script), lambda: len((folder / "runs").read_text().splitlines()) if (folder / "runs").exists() else 0


def says(peak: CpuPeak) -> str:
    names = ("clock_mhz", "fma_per_cycle", "peak_gflops_unit", "peak_gflops", "memory_gbps_unit", "memory_gbps", "spread")
    return f"echo '{json.dumps({name: getattr(peak, name) for name in names})}'"


@pytest.fixture(scope="module")
def measured() -> tuple[Isa, CpuPeak]:
    """One real measurement of this host at its widest instruction set."""
    if find_compiler() is None:
        pytest.skip("compiler: no C compiler")
    host = Host.here()
    info = parse_cpuinfo((host.proc / "cpuinfo").read_text())
    isa = info.isas()[0]
    peak = peak_of(info=info, isa=isa, topology=topology(host), compiler=find_compiler(), cache_dir=None, measure=True)
    assert isinstance(peak, CpuPeak), peak
    return isa, peak


def test_all_cores_together_do_at_least_what_one_does(measured):
    _, peak = measured
    assert peak.peak_gflops >= peak.peak_gflops_unit
    assert peak.memory_gbps >= peak.memory_gbps_unit


def test_peak_is_two_flops_a_lane_at_the_measured_fmas_per_cycle(measured):
    isa, peak = measured
    expected = 2e-3 * isa.wave_width * peak.fma_per_cycle * peak.clock_mhz
    assert peak.peak_gflops_unit == pytest.approx(expected, rel=0.5)  # a busy host; a wrong lane or chain count is 2x off


def test_rates_are_those_of_a_real_core(measured):
    isa, peak = measured
    assert 500 < peak.clock_mhz < 8000
    assert 0.4 < peak.fma_per_cycle < 4.5
    assert 1 <= peak.fma_pipes <= 4
    assert 0.5 < peak.memory_gbps_unit < 500


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["0", "2000000", "2000000", "0", "1", "1"],
        ["1", "10", "2000000", "0", "1", "1"],
        ["9999", "2000000", "2000000", "0", "1", "1"],
        ["1", "2000000", "2000000", "0", "0", "1"],
    ],
)
def test_the_program_refuses_what_it_cannot_run(tmp_path, arguments):
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("compiler: no C compiler")
    source = files("haotuner.hw_profiles").joinpath("native/peak.c")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-msse4.2", "-DVECTOR_BYTES=16", "-DCHAINS=14", "-pthread"]
    subprocess.run([compiler, *flags, str(source), "-o", str(tmp_path / "peak")], check=True)
    assert subprocess.run([str(tmp_path / "peak"), *arguments], capture_output=True, check=False).returncode == 2


def test_a_result_is_measured_once_and_then_read(tmp_path):
    compiler, runs = compiler_of(tmp_path, says(CALM))
    assert ask(tmp_path, compiler=compiler) == CALM
    assert ask(tmp_path, compiler=compiler) == CALM
    assert ask(tmp_path, compiler=None) == CALM
    assert runs() == 1


def test_without_a_cache_every_call_measures(tmp_path):
    compiler, runs = compiler_of(tmp_path, says(CALM))
    assert ask(tmp_path, compiler=compiler, cache=None) == ask(tmp_path, compiler=compiler, cache=None) == CALM
    assert runs() == 2


def test_another_instruction_set_or_core_count_is_another_entry(tmp_path):
    compiler, runs = compiler_of(tmp_path, says(CALM))
    for isa, cpus in ((ISAS[0], 2), (ISAS[1], 2), (ISAS[0], 4)):
        ask(tmp_path, compiler=compiler, isa=isa, cpus=cpus)
    assert runs() == 3
    assert len(list((tmp_path / "cache").glob("cpu-peak-*.json"))) == 3


def test_a_busy_host_is_measured_again_and_the_best_is_kept(tmp_path):
    compiler, runs = compiler_of(tmp_path, says(BUSY), says(CALM))
    assert ask(tmp_path, compiler=compiler) == BUSY
    both = ask(tmp_path, compiler=compiler)
    assert isinstance(both, CpuPeak)
    assert (both.peak_gflops_unit, both.memory_gbps, both.fma_per_cycle, both.runs) == (190.0, 40.0, 1.97, 2)
    assert ask(tmp_path, compiler=compiler) == both
    assert runs() == 2


def test_a_host_that_is_always_busy_is_not_measured_for_ever(tmp_path):
    compiler, runs = compiler_of(tmp_path, says(BUSY))
    for _ in range(6):
        ask(tmp_path, compiler=compiler)
    assert runs() == 3


@pytest.mark.parametrize(
    "spoiled",
    [{"memory_gbps": 20.0}, {"peak_gflops": 190.0}, {"memory_gbps_unit": 12.0}, {"peak_gflops_unit": 150.0}],
)
def test_two_cores_that_did_as_little_as_one_or_more_than_twice_it_are_measured_again(tmp_path, spoiled):
    compiler, runs = compiler_of(tmp_path, says(replace(CALM, **spoiled)), says(CALM))
    ask(tmp_path, compiler=compiler)
    assert ask(tmp_path, compiler=compiler) == replace(CALM, runs=2)
    assert runs() == 2


def test_one_core_alone_need_not_beat_itself(tmp_path):
    alone = replace(CALM, memory_gbps=20.0, peak_gflops=190.0)
    compiler, runs = compiler_of(tmp_path, says(alone))
    assert ask(tmp_path, compiler=compiler, cpus=1) == ask(tmp_path, compiler=compiler, cpus=1) == alone
    assert runs() == 1


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"key": {}, "rates": {}}',
        "half",
        "other key",
        "negative",
        "text",
        "no runs",
    ],
)
def test_a_damaged_cache_is_measured_again(tmp_path, damage):
    compiler, runs = compiler_of(tmp_path, says(CALM))
    ask(tmp_path, compiler=compiler)
    (path,) = (tmp_path / "cache").glob("*.json")
    entry = json.loads(path.read_text())
    rates = entry["rates"]
    changed = (
        {
            "half": path.read_bytes()[:-20],
            "other key": {"key": {**entry["key"], "isa": "sse"}, "rates": rates},
            "negative": {"key": entry["key"], "rates": {**rates, "memory_gbps": -1.0}},
            "text": {"key": entry["key"], "rates": {**rates, "memory_gbps": "fast"}},
            "no runs": {"key": entry["key"], "rates": {**rates, "runs": 0}},
        }.get(damage, damage)
        if isinstance(damage, str)
        else damage
    )
    path.write_bytes(changed if isinstance(changed, bytes) else json.dumps(changed).encode())
    assert ask(tmp_path, compiler=compiler) == CALM
    assert runs() == 2
    assert json.loads(path.read_text()) == entry


def test_a_cache_folder_that_is_a_file_costs_the_cache_only(tmp_path):
    (tmp_path / "cache").write_text("in the way")
    compiler, _ = compiler_of(tmp_path, says(CALM))
    assert ask(tmp_path, compiler=compiler) == CALM
    assert (tmp_path / "cache").read_text() == "in the way"


def test_no_half_written_files_are_left(tmp_path):
    compiler, _ = compiler_of(tmp_path, says(CALM))
    ask(tmp_path, compiler=compiler)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".json"]


def test_no_compiler_is_an_answer_with_a_remedy(tmp_path):
    not_measured = ask(tmp_path, compiler=None)
    assert isinstance(not_measured, NotMeasured)
    assert "no C compiler" in not_measured.reason and "apt-get install gcc" in not_measured.remedy


def test_looking_only_never_runs_the_compiler(tmp_path):
    compiler, runs = compiler_of(tmp_path, says(CALM))
    assert isinstance(ask(tmp_path, compiler=compiler, measure=False), NotMeasured)
    assert runs() == 0


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("exit 3", "peak failed (exit 3)"),
        ("echo no memory >&2; exit 3", "no memory"),
        ("kill -ILL $$", "signal 4"),
        ("echo '{}'", "the measuring program said"),
        ("echo not json", "the measuring program said 'not json"),
        (says(replace(CALM, memory_gbps_unit=0.001)).replace("0.001", "0"), "not a positive number"),
        (says(CALM).replace("190.0", "NaN"), "not a positive number"),
    ],
)
def test_a_program_that_fails_is_a_reason_and_is_not_cached(tmp_path, program, reason):
    compiler, _ = compiler_of(tmp_path, program)
    not_measured = ask(tmp_path, compiler=compiler)
    assert isinstance(not_measured, NotMeasured)
    assert reason in not_measured.reason
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("path", ["/nonexistent/cc", shutil.which("false")])
def test_a_compiler_that_fails_is_a_reason(tmp_path, path):
    not_measured = ask(tmp_path, compiler=path)
    assert isinstance(not_measured, NotMeasured)
    assert not_measured.remedy


def test_a_program_that_hangs_is_ended(tmp_path):
    compiler, _ = compiler_of(tmp_path, "exec sleep 30")
    not_measured = ask(tmp_path, compiler=compiler, limit_s=0.2)
    assert isinstance(not_measured, NotMeasured)
    assert "did not end within 0.2 s" in not_measured.reason


@pytest.mark.parametrize(("l3_mib", "rounds"), [(32, (5, 12)), (300, (1, 2))])
def test_a_large_cache_is_read_past_less_often(tmp_path, l3_mib, rounds):
    """Four times 300 MB read 85 times would take half a minute."""
    compiler, _ = compiler_of(tmp_path, f"echo $@ > {tmp_path}/asked; {says(CALM)}")
    host = replace(
        topology(machine(tmp_path / "machine", cpus=2)), l3_bytes=l3_mib << 20, l2_bytes=1 << 20, memory_bytes=64 << 30
    )
    info = parse_cpuinfo(EPYC)
    peak_of(info=info, isa=ISAS[0], topology=host, compiler=compiler, cache_dir=None, measure=True)
    _, alone, each, _, *round_counts = (tmp_path / "asked").read_text().split()
    assert tuple(map(int, round_counts)) == rounds
    assert min(int(alone), 2 * int(each)) >= 4 * (l3_mib << 20), "more than the caches hold"


def test_a_known_result_survives_a_failing_second_run(tmp_path):
    compiler, _ = compiler_of(tmp_path, says(BUSY), "exit 1")
    assert ask(tmp_path, compiler=compiler) == BUSY
    assert ask(tmp_path, compiler=compiler) == BUSY


def test_memory_is_the_hosts_whichever_instructions_read_it_best(tmp_path, monkeypatch):
    fast = replace(CALM, memory_gbps_unit=30.0, memory_gbps=50.0, peak_gflops_unit=95.0, peak_gflops=180.0)
    compiler, runs = compiler_of(tmp_path, says(CALM), says(fast))
    monkeypatch.setattr(cpu, "find_compiler", lambda: compiler)
    wide, narrow = parse_cpuinfo(EPYC).isas()[:2]

    def rates(isa: Isa) -> CpuPeak | NotMeasured:
        return cpu_rates(isa, host=machine(tmp_path / "machine"), measure=True, cache_dir=tmp_path / "cache")

    assert rates(wide) == CALM
    assert rates(narrow) == fast
    assert rates(wide) == replace(CALM, memory_gbps_unit=30.0, memory_gbps=50.0)
    assert runs() == 2


def test_a_pipe_in_place_of_the_cache_is_not_waited_for(tmp_path):
    compiler, runs = compiler_of(tmp_path, says(CALM))
    ask(tmp_path, compiler=compiler)
    (path,) = (tmp_path / "cache").glob("*.json")
    path.unlink()
    os.mkfifo(path)
    assert ask(tmp_path, compiler=compiler) == CALM and runs() == 2
