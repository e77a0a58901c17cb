"""Bytecode of models as a file: what is damaged, cut or linked is refused in words, from Python and from C."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import haotuner
from haotuner.errors import HaotunerError, PackInvalid
from haotuner.pack.manifest import read_manifest
from haotuner.pack.write import as_json, sealed
from haotuner.runtime.native_library import NativeLibrary, NativeModel
from haotuner.spec import bytecode
from haotuner.verify.pack_check import verify
from tests.runtime.model_packs import planned
from tests.runtime.native_builds import HERE, LIBRARY, c_pack, cc
from tests.runtime.test_models_c import GRAPH, LANES

PARTS = ("magic", "version", "count", "checksum", "first", "last")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models, _, ops = planned(GRAPH, LANES, exact=False)
    return c_pack(tmp_path_factory.mktemp("packs") / "pack", ops, models=models)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cc([HERE / "drive_models.c", *LIBRARY], tmp_path_factory.mktemp("drive") / "drive", "-O1")


@pytest.fixture
def copy(pack: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pack, tmp_path / "pack"))


def from_c(program: Path, pack: Path, tmp_path: Path) -> str:
    command = [str(program), str(pack), "encoder", "1", str(tmp_path / "out"), "2", "3"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran
    return ran.stdout + ran.stderr


def file_of(pack: Path) -> Path:
    return pack / "models" / "encoder.bytecode"


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def damages(sound: bytes) -> dict[str, bytes]:
    """A byte of each part changed; words and bytes missing or added."""
    places = dict(zip(PARTS, (0, 8, 17, 24, 32, len(sound) - 1), strict=True))
    changed = {name: sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :] for name, at in places.items()}
    return changed | {"cut": sound[:-8], "half a word": sound[:-3], "nothing": b"", "more": sound + bytes(8)}


def test_damaged_bytecode_is_refused_by_its_hash(copy, program, tmp_path):
    sound = file_of(copy).read_bytes()
    assert "calls=2" in from_c(program, copy, tmp_path)
    for what, data in damages(sound).items():
        file_of(copy).write_bytes(data)
        with haotuner.load(copy) as opened, pytest.raises(PackInvalid, match="encoder.bytecode: its sha256 is not the one"):
            opened.model("encoder")
            pytest.fail(what)
        assert "encoder.bytecode: its sha256 is not the one in the manifest; restore" in from_c(program, copy, tmp_path)


def test_damaged_bytecode_with_a_right_hash_is_refused_by_the_reader(copy, program, tmp_path):
    """As of a pack that somebody sealed anew."""
    sound = file_of(copy).read_bytes()
    mapped = NativeLibrary(next((copy / "lib").iterdir()))
    with (copy / "models" / "encoder.weights").open("rb") as weights:
        for at in range(len(sound)):
            changed = sound[:at] + bytes([sound[at] ^ (1 << at % 8)]) + sound[at + 1 :]
            with pytest.raises(PackInvalid, match="schedule is damaged at word"):
                NativeModel(mapped, "encoder", changed, weights.fileno(), 1)
        assert NativeModel(mapped, "encoder", sound, weights.fileno(), 1).dims == ("batch", "seq")
    document = json.loads((copy / "manifest.json").read_text())
    for data in damages(sound).values():
        files = {file_of(copy): data}
        document["models"]["encoder"]["bytecode_sha256"] = sha256_of(data)
        files |= {copy / name: text for name, text in sealed(as_json(document)).items()}
        for path, text in files.items():
            path.write_bytes(text)
        with haotuner.load(copy) as opened, pytest.raises(PackInvalid, match="schedule is damaged|is cut"):
            opened.model("encoder")
        assert any(words in from_c(program, copy, tmp_path) for words in ("schedule is damaged", "is cut"))


def test_bytecode_that_is_no_file_of_the_pack_is_refused(copy, program, tmp_path):
    path = file_of(copy)
    path.rename(tmp_path / "elsewhere")
    for kind in ("nothing", "link", "pipe", "folder"):
        if kind == "link":
            path.symlink_to(tmp_path / "elsewhere")
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        with haotuner.load(copy) as opened, pytest.raises(HaotunerError, match="encoder.bytecode"):
            opened.model("encoder")
        assert "encoder.bytecode: cannot read it" in from_c(program, copy, tmp_path)
        if kind == "folder":
            path.rmdir()
        elif kind != "nothing":
            path.unlink()


@pytest.mark.parametrize("source", ["", "x" * 64, "0" * 63, 5, None, []])
def test_the_hash_of_a_models_source_is_a_hash(copy, program, tmp_path, source):
    document = json.loads((copy / "manifest.json").read_text())
    document["models"]["encoder"]["source_sha256"] = source
    for name, text in sealed(as_json(document)).items():
        (copy / name).write_bytes(text)
    if source == "":
        assert read_manifest(copy).models["encoder"].source_sha256 == ""
        return
    with pytest.raises(PackInvalid, match="sha256"):
        read_manifest(copy)
    if isinstance(source, str):
        assert "the sha256 of a model's source is not 64 hex digits" in from_c(program, copy, tmp_path)


@pytest.mark.parametrize(
    "entry", [{"bytecode": "../x"}, {"bytecode": "other.bytecode"}, {"bytecode_sha256": ""}, {"bytecode_sha256": "x" * 64}]
)
def test_a_manifest_names_no_other_file(copy, entry):
    document = json.loads((copy / "manifest.json").read_text())
    document["models"]["encoder"] |= entry
    for name, text in sealed(as_json(document)).items():
        (copy / name).write_bytes(text)
    with pytest.raises(PackInvalid, match="bytecode|sha256"):
        read_manifest(copy)


def test_verify_finds_bytecode_of_another_schedule_than_the_document(copy):
    document = json.loads((copy / "models" / "encoder.json").read_text())
    document["required"] = [[0, "a sequence is not empty"]]
    data = bytecode.bytecode_of(document, (copy / "models" / "encoder.weights").stat().st_size)
    assert data is not None
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["models"]["encoder"]["bytecode_sha256"] = sha256_of(data)
    file_of(copy).write_bytes(data)
    for name, text in sealed(as_json(manifest)).items():
        (copy / name).write_bytes(text)
    assert any("its bytecode is another schedule than its document" in problem for problem in verify(copy))
