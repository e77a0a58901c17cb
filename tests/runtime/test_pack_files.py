"""A pack that was changed, cut, moved, or written to harm is refused before any of its code runs, in bounded time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import haotuner
from haotuner.errors import HaotunerError, PackInvalid, PackMismatch
from haotuner.pack.folder import SIZE_LIMIT_BYTES
from haotuner.pack.manifest import read_manifest
from tests.runtime.conftest import DENSE, rows
from tests.runtime.packs import put_manifest, rewrite


def library(pack: Path) -> Path:
    return next((pack / "lib").iterdir())


def refused(pack: Path, message: str, kind: type[HaotunerError] = PackInvalid) -> None:
    with pytest.raises(kind, match=message):
        haotuner.load(pack)


def test_every_kind_of_damage_to_the_library(copied):
    path, good = library(copied), library(copied).read_bytes()
    for offset in (0, 5, 18, 4096, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
        refused(copied, "sha256")
    for size in (0, 1, 64, len(good) - 1):
        path.write_bytes(good[:size])
        refused(copied, "sha256")
    path.write_bytes(good + b"\0")
    refused(copied, "sha256")
    path.unlink()
    refused(copied, "cannot read lib/")
    path.mkdir()
    refused(copied, "cannot read lib/")
    path.rmdir()
    path.write_bytes(good)
    haotuner.load(copied).close()


def test_links_are_not_followed(copied, tmp_path):
    path = library(copied)
    shutil.move(path, tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    refused(copied, "link")
    path.unlink()
    shutil.move(tmp_path / "elsewhere.so", path)
    shutil.move(copied / "lib", tmp_path / "lib2")
    (copied / "lib").symlink_to(tmp_path / "lib2")
    refused(copied, "link")


def signed(pack: Path, data: bytes, arch: str) -> None:
    """A pack whose hashes are right, whatever its library holds."""
    import hashlib

    shutil.rmtree(pack / "lib")
    (pack / "lib").mkdir()
    digest = hashlib.sha256(data).hexdigest()
    (pack / f"lib/{digest[:16]}.so").write_bytes(data)
    device = json.loads((pack / "manifest.json").read_text())["device"] | {"arch": arch}
    rewrite(pack, files={f"lib/{digest[:16]}.so": digest}, device=device)


def test_another_architecture(copied):
    data = library(copied).read_bytes()
    signed(copied, data[:18] + (183).to_bytes(2, "little") + data[20:], "x86-64-v2")  # 183: aarch64
    refused(copied, "not a library for x86-64", PackMismatch)
    signed(copied, data, "sm_90")
    refused(copied, "sm_90", PackMismatch)
    signed(copied, b"not ELF at all", "x86-64-v2")
    refused(copied, "not a library", PackMismatch)


def test_a_wider_instruction_set_than_the_host(copied, monkeypatch):
    from haotuner.runtime import library as module

    signed(copied, library(copied).read_bytes(), "x86-64-v4")
    monkeypatch.setattr(module, "missing_flags", lambda arch: ("avx512f",))
    refused(copied, "this CPU lacks avx512f", PackMismatch)


def test_a_library_that_is_no_pack(copied, tmp_path):
    source = tmp_path / "empty.c"
    source.write_text("int nothing;\n")
    subprocess.run(["cc", "-shared", "-o", tmp_path / "empty.so", source], check=True)
    signed(copied, (tmp_path / "empty.so").read_bytes(), "x86-64-v2")
    refused(copied, "no function")


def test_a_cut_library_whose_hash_was_made_anew(copied):
    """Mapping it would kill the process with SIGBUS."""
    data = library(copied).read_bytes()
    for size in (len(data) // 3, 4096, 100, 64, 63, 7):
        signed(copied, data[:size], "x86-64-v2")
        refused(copied, "is cut|not a library", PackMismatch)


def test_a_library_that_needs_what_is_not_there(copied, tmp_path):
    source = tmp_path / "needy.c"
    source.write_text("extern int ht_nowhere; int *wanted = &ht_nowhere;\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "needy.so", source], check=True)
    signed(copied, (tmp_path / "needy.so").read_bytes(), "x86-64-v2")
    refused(copied, "cannot be loaded.*ht_nowhere")


GOOD = (
    f'{{"schema":1,"files":{{"lib/0123456789abcdef.so":"{"0" * 64}"}},"device":{{"arch":"x86-64","id":"a"}},"ops":['
    '{"name":"dense_n8_k8","n":8,"k":8,"pw":8,"panels":1,"weight":"nk","first_m":1,"last_m":2,'
    '"kernels":["cpu_dense_fp32__mr1_nr8_pw8_ku1_vl4"],"threads":[1]}]}'
)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "path up": (GOOD.replace("lib/0123456789abcdef.so", "../../lib/0123456789abcdef.so").encode(), "lib/<16"),
    "absolute path": (GOOD.replace("lib/0123456789abcdef.so", "/lib/0123456789abcdef.so").encode(), "lib/<16"),
    "path with newline": (GOOD.replace("abcdef.so", "abcdef.so\\n").encode(), "lib/<16"),
    "no files": (GOOD.replace('"lib/0123456789abcdef.so":"%s"' % ("0" * 64), "").encode(), "one library"),
    "newer schema": (GOOD.replace('"schema":1', '"schema":3').encode(), "schema 3"),
    "true for one": (GOOD.replace('"schema":1', '"schema":true').encode(), "schema True"),
    "no schema": (b"{}", "no schema"),
    "a list": (b"[]", "not a haotuner manifest"),
    "empty": (b"", "JSON"),
    "nan": (GOOD.replace('"n":8', '"n":NaN').encode(), "NaN"),
    "infinity": (GOOD.replace('"n":8', '"n":Infinity').encode(), "Infinity"),
    "1e3": (GOOD.replace('"n":8', '"n":8e0').encode(), "whole number"),
    "true extent": (GOOD.replace('"n":8', '"n":true').encode(), "whole number"),
    "huge extent": (GOOD.replace('"n":8', f'"n":{2**31}').encode(), "whole number"),
    "thousands of digits": (GOOD.replace('"n":8', '"n":' + "9" * 100_000).encode(), "JSON|whole number"),
    "too few panels": (GOOD.replace('"n":8', '"n":9').encode(), "not possible"),
    "key twice": (GOOD.replace('"n":8', '"n":8,"n":8').encode(), "twice"),
    "op twice": (GOOD.replace('[1]}]', '[1]},' + GOOD[GOOD.index('"ops":[') + 7 : -2] + "]").encode(), "once each"),
    "no ops": (GOOD[: GOOD.index('"ops"')].encode() + b'"ops":[]}', "at least one"),
    "ops is a dict": (GOOD[: GOOD.index('"ops"')].encode() + b'"ops":{}}', "list"),
    "files is a list": (GOOD.replace('{"lib/0123456789abcdef.so":"%s"}' % ("0" * 64), "[]").encode(), "one library"),
    "device is text": (GOOD.replace('{"arch":"x86-64","id":"a"}', '"x"').encode(), "device"),
    "kernel name": (GOOD.replace("cpu_dense_fp32__mr1", "$(reboot)__mr1").encode(), "micro-kernel"),
    "kernel without rows": (GOOD.replace("__mr1_nr8", "__nr8").encode(), "mr"),
    "op name for a shell": (GOOD.replace("dense_n8_k8", "dense;reboot").encode(), "dense;reboot"),
    "op name of other extents": (GOOD.replace("dense_n8_k8", "dense_n9_k8").encode(), "dense_n9_k8"),
    "another kind": (GOOD.replace("dense_n8_k8", "conv_n8_k8").encode(), "conv"),
    "range upside down": (GOOD.replace('"first_m":1', '"first_m":3').encode(), "first_m"),
    "threads twice": (GOOD.replace("[1]", "[1,1]").encode(), "threads"),
    "facts is a list": (GOOD.replace('"threads"', '"facts":[],"threads"').encode(), "facts"),
    "utf-16": (GOOD.encode("utf-16"), "JSON"),
    "byte order mark": (b"\xef\xbb\xbf" + GOOD.encode(), "JSON"),
    "not text": (bytes(range(256)), "JSON"),
    "deep": (b"[" * 100_000 + b"]" * 100_000, "nested"),
    "deep later": (GOOD[:-1].encode() + b',"x":"' + b" " * 70_000 + b'","y":' + b"[" * 40 + b"]" * 40 + b"}", "nested"),
    "many brackets": (b"[" + b"[]," * 2_000_001 + b"[]]", "nested"),
    "many ops": (GOOD[: GOOD.index('"ops"')].encode() + b'"ops":[' + b"1," * 300 + b"1]}", "at most 256"),
    "escape sequence": (GOOD.replace('"schema":1', '"schema":1,"haotuner":"\\u001b[2J"').encode(), "control characters"),
    "escape in a key": (GOOD.replace('"schema":1', '"schema":1,"\\u009b2J":1').encode(), "control characters"),
    "writing turned": (GOOD.replace('"schema":1', '"schema":1,"haotuner":"\\u202e"').encode(), "control characters"),
    "tuning is text": (GOOD.replace('"schema":1', '"schema":1,"tuning":"x"').encode(), "tuning must be an object"),
    "seconds is text": (GOOD.replace('"schema":1', '"schema":1,"tuning":{"seconds":"x"}').encode(), "tuning.seconds"),
    "numbers is text": (GOOD.replace('"schema":1', '"schema":1,"verification":{"numbers":"x"}').encode(), "numbers"),
    "toolchain": (GOOD.replace('"schema":1', '"schema":1,"toolchain":{"cc":[]}').encode(), "toolchain.cc"),
    "a cache of 1e18": (GOOD.replace('"id":"a"', '"id":"a","l3_bytes":1e18').encode(), "no such cache|no CPU"),
    "ratio is text": (GOOD.replace('"threads"', '"facts":{"packed_ratio":"x"},"threads"').encode(), "packed_ratio"),
    "regret is true": (GOOD.replace('"threads"', '"facts":{"regret_max":true},"threads"').encode(), "regret_max"),
    "plans is a list": (GOOD.replace('"threads"', '"facts":{"plans":[]},"threads"').encode(), "plans must be"),
    "times are texts": (GOOD.replace('"threads"', '"facts":{"plans":{"1":{"predicted_us":["x"]}}},"threads"').encode(),
                        "predicted_us"),
    "curves": (GOOD.replace('"threads"', '"facts":{"plans":{"1":{"curves":{"n":[{"kernel":1}]}}}},"threads"').encode(),
               "curves.n.kernel"),
    "lone surrogate": (GOOD.replace('"id":"a"', '"id":"\\ud800"').encode(), "control characters"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_manifests(tmp_path, case):
    raw, message = HOSTILE[case]
    put_manifest(tmp_path, raw)
    refused(tmp_path, message)


def test_the_manifest_that_the_hostile_ones_are_made_from_is_read(tmp_path):
    (tmp_path / "manifest.json").write_text(GOOD)
    assert read_manifest(tmp_path).ops[0].name == "dense_n8_k8"
    refused(tmp_path, "cannot read lib/")


def test_a_manifest_of_five_gigabytes_is_not_read(tmp_path):
    with (tmp_path / "manifest.json").open("wb") as stream:
        stream.truncate(5 << 30)  # sparse
    refused(tmp_path, f"more than {SIZE_LIMIT_BYTES >> 20} MiB")


def test_what_is_no_regular_manifest(tmp_path):
    refused(tmp_path, "not a haotuner pack")
    refused(tmp_path / "missing", "not a haotuner pack")
    (tmp_path / "manifest.json").mkdir()
    refused(tmp_path, "not a haotuner pack")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe/manifest.json")  # opening it would wait for a writer for ever
    refused(tmp_path / "pipe", "not a haotuner pack")
    (tmp_path / "link").mkdir()
    (tmp_path / "link/manifest.json").symlink_to("/dev/zero")
    refused(tmp_path / "link", "not a haotuner pack")


def verify(pack: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "haotuner.pack", "verify", str(pack), *more], capture_output=True, text=True, check=False,
        env={**os.environ, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"},
    )  # fmt: skip


def test_verify_from_the_command_line(built_pack, copied):
    sound = verify(built_pack.path, "--json")
    assert (sound.returncode, json.loads(sound.stdout)) == (0, {"ok": True, "problems": []}), sound.stderr
    path = library(copied)
    path.write_bytes(path.read_bytes()[:-1])
    broken = verify(copied, "--json")
    answer = json.loads(broken.stdout)
    assert broken.returncode == 5 and answer["ok"] is False and "sha256" in answer["problems"][0]
    assert verify(copied).returncode == 5
    assert subprocess.run([sys.executable, "-m", "haotuner.pack"], capture_output=True, check=False).returncode == 2


def test_verify_finds_a_wrong_kernel(built_pack, tmp_path, monkeypatch):
    """A kernel that forgets one step of k is found, although it is fast and never crashes."""
    from haotuner.backends.cpu import compile as cpu_compile
    from haotuner.microkernels.cpu import dense as cpu_dense
    from haotuner.verify.pack_check import verify as problems_of
    from tests.runtime.packs import LANES, best_level, make_pack, packed_op

    real = cpu_dense._tile_program

    def broken(kernel: Any, symbol: str) -> Any:
        script = real(kernel, symbol).script()
        assert "k % T.int64(2)" in script or "k % 2" in script
        import tvm.script

        return tvm.script.from_source(
            script.replace("k % T.int64(2)", "k % T.int64(1)").replace("k % 2)", "k % 1)"), check_well_formed=False
        )

    monkeypatch.setattr(cpu_dense, "_tile_program", broken)
    # Without its cache of programs, in which other tests left the right ones.
    monkeypatch.setattr(cpu_compile, "_functions_by_symbol", cpu_compile._functions_by_symbol.__wrapped__)
    level = best_level()
    wrong_pack = make_pack(tmp_path / "wrong", [packed_op(DENSE, LANES[level], 2 * LANES[level], (1,))], level)
    assert any("wrong results" in problem for problem in problems_of(wrong_pack.path))


def test_a_pack_that_moves_or_vanishes_serves_on(built_pack, copied, weight, tmp_path):
    with haotuner.load(copied, threads=2) as pack:
        linear = pack.op(DENSE).bind(weight)
        before = linear(rows(9))
        copied.rename(tmp_path / "moved")
        assert (linear(rows(9)) == before).all()
        shutil.rmtree(tmp_path / "moved")
        assert (linear(rows(9)) == before).all()
        assert (pack.op(DENSE).bind(weight)(rows(9)) == before).all()


def test_a_read_only_pack_is_served(copied, weight):
    for path in (library(copied), copied / "manifest.json", copied / "lib", copied):
        path.chmod(path.stat().st_mode & ~0o222)
    before = sorted(p.name for p in copied.rglob("*"))
    with haotuner.load(copied) as pack:
        pack.op(DENSE).bind(weight)(rows(3))
    assert sorted(p.name for p in copied.rglob("*")) == before  # nothing is written when a pack is served
    for path in (copied, copied / "lib"):
        path.chmod(0o755)


def test_a_pack_is_replaced_in_one_step(built_pack, copied, weight):
    """Readers that open the pack again and again while it is replaced see one or the other, never a mix."""
    import threading

    from haotuner.pack.write import write_pack

    document = json.loads((copied / "manifest.json").read_text())
    source = copied.parent / "source.so"
    source.write_bytes(library(copied).read_bytes())
    done = threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        while not done.is_set():
            try:
                read_manifest(copied)
            except BaseException as error:
                problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(20):
        write_pack(copied, source, {**document, "turn": turn}, lambda _: None)
    done.set()
    reader.join()
    assert not problems
    assert json.loads((copied / "manifest.json").read_text())["turn"] == 19
    assert [p.name for p in copied.parent.iterdir() if ".new" in p.name or ".old" in p.name] == []
    with haotuner.load(copied) as pack:
        assert pack.op(DENSE).bind(weight)(rows(1)).shape == (1, 100)
