"""Fuzzers of manifest, plan and validator, under ASan and UBSan: the corpus is replayed always, the search itself is slow.

``corpus/seeds.txt`` holds a seed for every outcome that the fuzzers of check.c and plan.c reached; ``corpus/manifest`` a
damaged manifest for every answer that one of the two readers gave. ``python -m tests.runtime.distil`` looks for more.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from haotuner.errors import PackInvalid
from haotuner.pack.manifest import read_manifest
from tests.runtime.distil import CORPUS, MANIFESTS, damaged, fuzzer, said_by_c
from tests.runtime.native_builds import run
from tests.runtime.test_pack_files import GOOD

SANITIZED = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
SEEDS = [line.split(" ", 2) for line in (CORPUS / "seeds.txt").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fuzzer(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.long
def test_every_kept_seed_has_its_outcome(fuzz):
    assert len(SEEDS) > 20
    for mode, seed, outcome in SEEDS:
        assert run([fuzz, mode, "1", seed], 40, **SANITIZED).stdout.strip() == outcome


def test_every_kept_manifest_is_answered_alike(fuzz, tmp_path):
    """Neither reader crashes, and what Python takes for a manifest C takes as well."""
    paths = sorted(MANIFESTS.iterdir())
    assert len(paths) > 10
    assert agree(fuzz, [path.read_bytes() for path in paths], tmp_path)


def agree(fuzz: Path, texts: list[bytes], folder: Path) -> bool:
    paths = []
    for index, text in enumerate(texts):
        (folder / str(index)).mkdir()
        paths.append(folder / str(index) / "manifest.json")
        paths[-1].write_bytes(text)
    for path, answer in zip(paths, said_by_c(fuzz, paths), strict=True):
        try:
            read_manifest(path.parent)
        except PackInvalid:
            continue
        assert answer == "ok", (answer, path.read_bytes())
    return True


@pytest.mark.parametrize("mode", ["check", "any", "plan"])
def test_some_new_seeds(fuzz, mode):
    run([fuzz, mode, "3000" if mode == "plan" else "100000", "7"], 40, **SANITIZED)


def test_some_damaged_manifests(fuzz, built_pack, tmp_path):
    (tmp_path / "good.json").write_text(GOOD)
    run([fuzz, "manifest", "20000", "1", tmp_path / "good.json", built_pack.path / "manifest.json"], 40, **SANITIZED)
    (tmp_path / "both").mkdir()
    assert agree(fuzz, [damaged(GOOD.encode(), seed) for seed in range(300)], tmp_path / "both")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_fuzzing_for_minutes(fuzz, built_pack, tmp_path, seed):
    (tmp_path / "good.json").write_text(GOOD)
    run([fuzz, "check", "6000000", str(seed)], 600, **SANITIZED)
    run([fuzz, "plan", "300000", str(seed)], 600, **SANITIZED)
    run(
        [fuzz, "manifest", "1000000", str(seed), tmp_path / "good.json", built_pack.path / "manifest.json"], 600, **SANITIZED
    )
    (tmp_path / "both").mkdir()
    assert agree(fuzz, [damaged(GOOD.encode(), seed << 32 | turn) for turn in range(10_000)], tmp_path / "both")


def test_a_fuzzer_that_finds_something_fails(fuzz):
    """The harness itself: a status other than 0 reaches the test."""
    assert subprocess.run([fuzz, "manifest", "1", "1", "/nowhere"], capture_output=True, check=False).returncode == 1
