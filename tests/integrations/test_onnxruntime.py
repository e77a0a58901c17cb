"""ONNX Runtime's provider inside it: the bits of pack.model, refusals in words, threads, memory, packs that it makes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from tests.integrations.onnxruntime_packs import NAMES, PROJECT, feeds_of, files_and_pack, mlp, module
from tests.integrations.onnxruntime_sessions import NAME, refusal, session_of
from tests.runtime.packs import put_manifest

onnxruntime: Any = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("hatchling")  # hatch_build.py compiles the provider
if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24):
    pytest.skip("onnxruntime: 1.24 or newer loads the provider", allow_module_level=True)
if shutil.which("cc") is None:
    pytest.skip("cc: not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], Path]:
    return files_and_pack(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", [*NAMES, "mlp"])
def test_a_session_answers_with_the_bits_of_the_packs_model(devices, packed, name):
    files, pack = packed
    session = session_of(devices, files[name], pack=pack, threads=2)
    assert session.get_providers()[0] == NAME
    with haotuner.load(pack, threads=2) as opened:
        model = opened.model(name)
        for feeds in feeds_of(name):
            answers = session.run(None, feeds)
            expected = model.run(feeds)
            for end, answer in zip(session.get_outputs(), answers, strict=True):
                assert answer.shape == expected[end.name].shape
                assert answer.tobytes() == expected[end.name].tobytes()


def test_no_node_is_left_to_another_provider(devices, packed, tmp_path):
    files, pack = packed
    chosen = onnxruntime.SessionOptions()
    chosen.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    chosen.add_provider_for_devices(devices, {"pack": str(pack)})
    session = onnxruntime.InferenceSession(str(files["encoder"]), chosen, enable_fallback=False)
    assert session.run(None, feeds_of("encoder")[0])


def test_the_list_of_providers_names_it(devices, packed):
    files, pack = packed
    providers = [(NAME, {"pack": str(pack)}), "CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(files["mlp"]), providers=providers, enable_fallback=False)
    assert session.get_providers() == [NAME, "CPUExecutionProvider"]
    chosen = onnxruntime.SessionOptions()
    chosen.add_session_config_entry("ep.haotuner.pack", str(pack))
    session = onnxruntime.InferenceSession(str(files["mlp"]), chosen, providers=[NAME], enable_fallback=False)
    assert session.get_providers()[0] == NAME


def test_the_provider_that_is_named_first_computes(devices, packed):
    files, pack = packed
    providers = ["CPUExecutionProvider", (NAME, {"pack": str(pack)})]
    session = onnxruntime.InferenceSession(str(files["mlp"]), providers=providers, enable_fallback=False)
    plain = onnxruntime.InferenceSession(str(files["mlp"]), providers=["CPUExecutionProvider"])
    feeds = feeds_of("mlp")[2]
    assert np.array_equal(session.run(None, feeds)[0], plain.run(None, feeds)[0])


def test_a_model_of_bytes_is_named_by_its_hash(devices, packed):
    files, pack = packed
    model = files["mlp"].read_bytes()
    assert "came as bytes" in refusal(devices, model, pack=pack)
    options = module(PROJECT / "haotuner_onnxruntime/__init__.py", "haotuner_onnxruntime").options_for_bytes(
        model, pack=str(pack)
    )
    session = session_of(devices, model, **options)
    feeds = feeds_of("mlp")[1]
    assert np.array_equal(session.run(None, feeds)[0], session_of(devices, files["mlp"], pack=pack).run(None, feeds)[0])


def test_a_model_that_the_pack_does_not_hold(devices, packed, tmp_path):
    _, pack = packed
    other = tmp_path / "other.onnx"
    other.write_bytes(mlp(seed=1).SerializeToString())
    digest = hashlib.sha256(other.read_bytes()).hexdigest()
    words = refusal(devices, other, pack=pack)
    assert f"does not hold this model (SHA-256 {digest[:16]}" in words and "ep.haotuner.fallback=1" in words
    session = session_of(devices, other, pack=pack, fallback=1)
    feeds = feeds_of("mlp")[0]
    plain = onnxruntime.InferenceSession(str(other), providers=["CPUExecutionProvider"])
    assert np.array_equal(session.run(None, feeds)[0], plain.run(None, feeds)[0])


WRONG_OPTIONS = {
    "no pack is named": {},
    "no such pack": {"pack": "/nowhere"},
    "no option is called packs": {"pack": "/nowhere", "packs": "x"},
    "threads is 0; it is a number from 1": {"pack": "/nowhere", "threads": "0"},
    "threads is two;": {"pack": "/nowhere", "threads": "two"},
    "tune is fast; it is zero": {"tune": "fast"},
    "fallback is yes; it is 0 or 1": {"pack": "/nowhere", "fallback": "yes"},
    "not 64 lower-case hex digits": {"pack": "/nowhere", "model_sha256": "ABC"},
    "option pack has 2000 letters": {"pack": "x" * 2000},
}


@pytest.mark.parametrize("words", WRONG_OPTIONS)
def test_options_that_make_no_sense(devices, packed, words):
    assert words in refusal(devices, packed[0]["mlp"], **WRONG_OPTIONS[words])


def test_an_option_that_is_set_twice(devices, packed):
    chosen = onnxruntime.SessionOptions()
    chosen.add_session_config_entry("ep.haotuner.pack", "/elsewhere")
    chosen.add_provider_for_devices(devices, {"pack": str(packed[1])})
    with pytest.raises(Exception, match="option pack is set to .*; set it once"):
        onnxruntime.InferenceSession(str(packed[0]["mlp"]), chosen, enable_fallback=False)


def test_damaged_and_foreign_packs(devices, packed, tmp_path):
    files, pack = packed
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    library = next((copy / "lib").iterdir())
    sound = library.read_bytes()
    library.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    assert "sha256" in refusal(devices, files["mlp"], pack=copy)
    library.write_bytes(sound)
    weights = copy / "models" / "mlp.weights"
    weight_bytes = weights.read_bytes()
    weights.write_bytes(weight_bytes[:-1] + bytes([weight_bytes[-1] ^ 1]))
    assert "mlp" in refusal(devices, files["mlp"], pack=copy)
    weights.write_bytes(weight_bytes)
    manifest = (copy / "manifest.json").read_bytes()
    arch = haotuner.load(copy).manifest.arch
    put_manifest(copy, manifest.replace(f'"arch": "{arch}"'.encode(), b'"arch": "x86-64-v9"'))
    assert "x86-64-v9" in refusal(devices, files["mlp"], pack=copy)
    put_manifest(copy, manifest.replace(b'"source_sha256"', b'"another_sha256"'))
    assert "does not say which files" in refusal(devices, files["mlp"], pack=copy)


def test_a_wrong_request_is_an_error_and_the_session_lives_on(devices, packed):
    files, pack = packed
    session = session_of(devices, files["moved"], pack=pack)
    (feeds,) = feeds_of("moved")
    expected = session.run(None, feeds)
    with pytest.raises(Exception, match=f"{NAME}.*|invalid"):
        session.run(None, {**feeds, "at": np.array([7, 0], np.int64)})
    for answer, again in zip(expected, session.run(None, feeds), strict=True):
        assert np.array_equal(answer, again)


def test_threads_call_one_session_at_once(devices, packed):
    files, pack = packed
    session = session_of(devices, files["mlp"], pack=pack, threads=1)
    feeds = feeds_of("mlp")
    expected = [session.run(None, first)[0] for first in feeds]

    def serve(turn: int) -> bool:
        return all(np.array_equal(session.run(None, feeds[(turn + i) % 4])[0], expected[(turn + i) % 4]) for i in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(serve, range(4)))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_stays_flat_over_new_shapes_and_sessions(devices, packed):
    files, pack = packed
    numbers = np.random.default_rng(0).standard_normal((400, 32)).astype(np.float32)

    def turn() -> None:
        session = session_of(devices, files["mlp"], pack=pack, threads=1)
        for rows in range(1, 401):
            session.run(None, {"x": numbers[:rows]})

    for _ in range(3):
        turn()
    before = resident()
    for _ in range(10):
        turn()
    assert resident() - before < 4 << 20


def fake_haotuner(folder: Path, pack: Path, code: int = 3) -> Path:
    """A program that does what `haotuner tune` does, at once: the pack lies at --out, and its words in a file."""
    program = folder / "haotuner"
    program.write_text(
        f"#!{sys.executable}\nimport shutil, sys\n"
        f"open({str(folder / 'words')!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10))\n"
        f"print('of the tuner')\nout = sys.argv[sys.argv.index('--out') + 1]\n"
        f"{code} in (0, 3) and shutil.copytree({str(pack)!r}, out)\nsys.exit({code})\n"
    )
    program.chmod(0o755)
    return program


def test_a_pack_is_made_once_where_none_holds_the_model(devices, packed, tmp_path):
    files, pack = packed
    options = {
        "command": fake_haotuner(tmp_path, pack),
        "cache": tmp_path / "a" / "cache",
        "shapes": "b=1..8",
        "tune": "zero",
    }
    for _ in range(2):
        assert session_of(devices, files["mlp"], **options).run(None, feeds_of("mlp")[0])
    folder = options["cache"] / hashlib.sha256(files["mlp"].read_bytes()).hexdigest()
    words = (tmp_path / "words").read_text().splitlines()
    assert words == [f"tune {files['mlp']} --shapes b=1..8 --zero-measure --subgraphs --quiet --out {folder}"]
    session_of(devices, files["mlp"], **options | {"cache": tmp_path / "other", "tune": "15s"})
    assert "--budget 15s" in (tmp_path / "words").read_text().splitlines()[-1]


def test_a_tuner_that_fails_is_an_error_that_names_its_words(devices, packed, tmp_path):
    files, pack = packed
    options = {"command": fake_haotuner(tmp_path, pack, code=2), "cache": tmp_path / "cache", "tune": "zero"}
    words = refusal(devices, files["mlp"], **options)
    assert "made no pack (exit code 2)" in words
    (log,) = (tmp_path / "cache").glob("*.log")
    assert str(log) in words and log.read_text() == "of the tuner\n"
    assert "exit code -1" in refusal(devices, files["mlp"], **options | {"command": tmp_path / "missing"})
    (tmp_path / "file").write_text("")
    assert "cannot be made" in refusal(devices, files["mlp"], **options | {"cache": tmp_path / "file" / "cache"})
    assert "from a model's file" in refusal(
        devices, files["mlp"].read_bytes(), **options, model_sha256=hashlib.sha256(b"").hexdigest()
    )


def test_an_older_runtime_is_refused_by_its_version(library):
    """A table of an old runtime has what an error needs, and there is none for the version that is asked for."""
    mapped, words = ctypes.CDLL(str(library)), list[bytes]()

    def status(code: int, text: bytes) -> int:
        words.append(text)
        return code

    create = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p)(status)
    table = (ctypes.c_void_p * 1)(ctypes.cast(create, ctypes.c_void_p).value)
    get_api = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_uint32)(lambda v: ctypes.addressof(table) if v == 1 else 0)
    number = ctypes.create_string_buffer(b"1.18.0")
    version = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: ctypes.addressof(number))
    base = (ctypes.c_void_p * 2)(*(ctypes.cast(first, ctypes.c_void_p).value for first in (get_api, version)))
    factories, used = (ctypes.c_void_p * 1)(), ctypes.c_size_t(9)
    mapped.CreateEpFactories.restype = ctypes.c_void_p
    assert mapped.CreateEpFactories(b"haotuner", base, None, factories, ctypes.c_size_t(1), ctypes.byref(used)) == 1
    assert used.value == 0 and b"ONNX Runtime 1.18.0 has no API of version 24" in words[0]


USE = """
import sys
import haotuner_onnxruntime as door, onnxruntime, numpy
(device,) = door.register()
assert [one.ep_name for one in door.register()] == door.get_ep_names() == [door.get_ep_name()]
session = onnxruntime.InferenceSession(sys.argv[1], providers=[(door.EP_NAME, {"pack": sys.argv[2]})], enable_fallback=False)
print(session.get_providers()[0], device.ep_vendor, session.run(None, {"x": numpy.zeros((3, 32), "f4")})[0].shape)
"""


@pytest.mark.long
def test_a_wheel_of_the_source_archive_serves(packed, tmp_path):
    """Without the tree around it; nothing of haotuner's Python is in the process."""
    files, pack = packed
    quiet = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    runs: list[tuple[list[str], Path]] = [
        ([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)], PROJECT),
        ([*quiet, "wheel", "--no-deps", "--no-build-isolation", "-w", ".", "haotuner_onnxruntime-0.1.0.tar.gz"], tmp_path),
    ]  # fmt: skip
    for words, folder in runs:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(r"haotuner_onnxruntime-0.1.0-py3-none-linux_\w+.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    words = [sys.executable, "-c", USE, str(files["mlp"]), str(pack)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.stdout == f"{NAME} haotuner (3, 16)\n", done.stderr[-2000:]


def test_a_compiler_may_be_several_words(tmp_path, monkeypatch):
    build = module(PROJECT / "hatch_build.py", "haotuner_onnxruntime_build")
    monkeypatch.setenv("CC", "sh -c 'echo of a compiler >&2; false'")
    with pytest.raises(RuntimeError, match=r"^sh -c .* failed: of a compiler"):
        build.compile_provider(PROJECT, "0.1.0", tmp_path / "none.so")


def test_a_source_tree_without_the_library_says_what_to_install():
    package = module(PROJECT / "haotuner_onnxruntime/__init__.py", "haotuner_onnxruntime_source")
    package.LIBRARY = Path("/nowhere/libhaotuner_onnxruntime.so")
    with pytest.raises(FileNotFoundError, match="install the wheel"):
        package.get_library_path()
