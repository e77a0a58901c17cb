"""Whole models in C: damaged schedules and odd feeds under ASan and UBSan, callers at once, and the calls of haotuner.h."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.spec.bytecode import VERSION, schedule_words, words_of
from tests.runtime.model_packs import planned
from tests.runtime.native_builds import ASAN, CLIB, HERE, LIBRARY, LOOSE, TSAN, c_pack, cc, pack_sources, run, write_files
from tests.runtime.test_models import numbers

WRAPPED = tuple(f"-Wl,--wrap={name}" for name in ("ht_group_run", "malloc", "calloc", "mmap"))
LANES = 4
B, T = dimension("batch"), dimension("seq")


def encoder() -> Graph:
    """A norm, dense layers without an epilogue (their kernels are plain C here), softmax, a mask, a transpose."""
    g = GraphBuilder()
    x, mask = g.input("x", (B, T, 8)), g.input("mask", (B, T), "int64")
    up = g.add("contract", decompositions.normalise(g, x, (2,), 1e-5), g.constant(numbers(8, 12)), labels="btk,kn->btn")
    y = g.add("contract", decompositions.softmax(g, up, 2), g.constant(numbers(12, 8)), labels="btk,kn->btn")
    shown = g.add("reshape", g.add("cast", mask, dtype="fp32"), shape=(B, T, 1))
    weights = decompositions.softmax(g, g.map("mul", y, shown), 1)
    pooled = g.add("reduce", g.map("mul", y, weights), how="sum", axes=(1,))
    return g.finish(pooled, g.add("transpose", y, order=(2, 0, 1)))


GRAPH = {"encoder": encoder()}
SMALL = 20  # tokens, up to which the model goes another way


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The program of native/models.c, and the folder and name of its model."""
    return program(tmp_path_factory.mktemp("models"), ASAN)


def program(
    folder: Path, sanitizers: tuple[str, ...], graphs: dict[str, Graph] = GRAPH, small: int = SMALL
) -> tuple[Path, list[Any]]:
    """The program, built with sanitizers, and the folder and name of its model."""
    written, _, ops = planned(graphs, LANES, exact=False, small=small)
    names = write_files(folder, written)
    flags = (*sanitizers, *LOOSE, *WRAPPED)
    sources = [*pack_sources(folder / "pack", ops, written), HERE / "models.c"]
    return cc(sources, folder / "models", *flags), [folder, *names]


MODES = {"schedules": ("3000", "ran="), "flips": ("1", "refused="), "feeds": ("400", "ran="), "callers": ("10", "wrong=0")}


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_read_or_written_past_its_end(models, mode):
    count, words = MODES[mode]
    assert words in run([models[0], mode, count, "5", *models[1]], 120).stdout


def test_a_size_that_was_seen_takes_no_memory(models):
    answer = run([models[0], "steady", "1", "0", *models[1]], 120).stdout
    assert answer == "calls=4 plans=2 contexts=1 arena_is_need=1 after_trim=0\n"


@pytest.mark.slow
def test_many_damaged_schedules(models):
    for seed in range(8):
        run([models[0], "schedules", "20000", str(seed), *models[1]], 600)


@pytest.mark.slow
def test_callers_at_once_race_for_nothing(tmp_path):
    built, model = program(tmp_path, TSAN)
    assert "wrong=0" in run([built, "callers", "10", "5", *model], 300).stdout


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written, _, ops = planned(GRAPH, LANES, exact=False, small=SMALL)
    return c_pack(tmp_path_factory.mktemp("c") / "pack", ops, models=written)


def counted(shape: tuple[int, ...], dtype: Any) -> Any:
    count = int(np.prod(shape))
    values = np.arange(count) % 8 / 8 if dtype == np.float32 else np.arange(count) % 2
    return values.astype(dtype).reshape(shape)


def test_c_answers_what_python_does(pack, tmp_path):
    program = cc([HERE / "drive_models.c", *LIBRARY], tmp_path / "drive", "-O1")
    with haotuner.load(pack, threads=2) as opened:
        model = opened.model("encoder")
        for dims in ((2, 7), (1, 30), (0, 3)):
            sizes = dict(zip(model.dims, dims, strict=True))
            shapes = [tuple(sizes[e] if isinstance(e, str) else int(e or 0) for e in end.shape) for end in model.inputs]
            feeds = {e.name: counted(shape, e.dtype) for e, shape in zip(model.inputs, shapes, strict=True)}
            expected = b"".join(array.tobytes() for array in model.run(feeds).values())
            stdout = run([program, pack, "encoder", "2", tmp_path / "out", *map(str, dims)], 40).stdout
            assert stdout.startswith("models=1 first=encoder calls=2 plans=1 memory=1 rank=-2 encoder: input x has 3 axes")
            assert (tmp_path / "out").read_bytes() == expected
    missing = subprocess.run([program, pack, "other", "1", tmp_path / "out"], capture_output=True, text=True, check=False)
    assert missing.returncode == 1 and "holds no model other" in missing.stdout
    (pack / "models" / "encoder.weights").rename(tmp_path / "weights")
    lost = subprocess.run([program, pack, "encoder", "1", tmp_path / "out"], capture_output=True, text=True, check=False)
    (tmp_path / "weights").rename(pack / "models" / "encoder.weights")
    assert lost.returncode == 1 and "not the one that the pack was made with" in lost.stdout


def test_the_example_of_a_model_prints_what_python_answers(pack, tmp_path):
    program = cc([CLIB / "examples/serve_model.c", *LIBRARY], tmp_path / "serve_model", *ASAN)
    lines = run([program, pack, "encoder", "2", "2", "7"], 40).stdout.splitlines()
    with haotuner.load(pack, threads=2) as opened:
        model = opened.model("encoder")
        feeds = {"x": counted((2, 7, 8), np.float32), "mask": counted((2, 7), np.int64)}
        for line, (name, values) in zip(lines, model.run(feeds).items(), strict=True):
            head, total = line.split(" sum=")
            assert head == " ".join((f"{name}:", *map(str, values.shape)))
            assert float(total) == pytest.approx(float(values.sum(dtype=np.float64)), rel=1e-4)
    ended = {"ASAN_OPTIONS": "detect_leaks=0"}  # a refused request ends the example as it stands
    refused = {("encoder", "2", "2"): (2, "encoder takes 2 sizes: batch seq\n"), ("other", "2"): (1, "holds no model other")}
    for words, (code, why) in refused.items():
        done = subprocess.run([program, pack, *words], capture_output=True, text=True, check=False, env=ended)
        assert done.returncode == code and why in done.stderr


def test_the_bytecode_is_the_documents(pack):
    written, _, _ = planned(GRAPH, LANES, exact=False, small=SMALL)
    raw = (pack / "models" / "encoder.bytecode").read_bytes()
    assert words_of(raw).tolist() == schedule_words(written[0].document, len(written[0].weights))
    assert sys.byteorder == "little" and raw[:16] == b"HTMODEL\0" + VERSION.to_bytes(8, "little")
