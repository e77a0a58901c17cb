"""Facts of the ops of a pack with whole models lie in a file of their own, which opening does not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from haotuner.errors import PackInvalid
from haotuner.pack.manifest import Manifest, ModelContent, read_manifest
from haotuner.pack.write import write_pack
from tests.runtime.packs import document, packed_op, rewrite

FACTS: dict[str, Any] = {"packed_ratio": 1.5, "plans": {"1": {"predicted_us": [1.0, 2.5]}}}


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A pack of one op and a model; nothing here maps its library."""
    library = tmp_path / "library.so"
    library.write_bytes(b"library")
    manifest = document([packed_op("dense:n=16,k=16", 4, 4, (1,))], "x86-64")
    manifest["ops"][0]["facts"] = FACTS
    return write_pack(tmp_path / "pack", library, manifest, lambda _: None, {"net": ModelContent(b"{}", None, b"weights")})


def held(pack: Path) -> Manifest:
    return read_manifest(pack)


def test_facts_are_read_when_they_are_asked_for(pack):
    assert "facts" not in json.loads((pack / "manifest.json").read_text())["ops"][0]
    (op,) = held(pack).ops
    assert op.facts == FACTS and set(op.facts) == set(FACTS) and len(op.facts) == len(FACTS)
    assert held(pack).whole_document["ops"][0]["facts"] == FACTS


def test_a_pack_opens_without_its_facts_and_says_that_they_are_gone(pack):
    (pack / "facts.json").unlink()
    manifest = held(pack)
    with pytest.raises(PackInvalid, match="facts.json cannot be read"):
        dict(manifest.ops[0].facts)
    with pytest.raises(PackInvalid, match="facts.json"):
        _ = manifest.whole_document


def test_changed_facts_are_found(pack):
    path = pack / "facts.json"
    raw = path.read_bytes()
    path.write_bytes(raw[:10] + bytes([raw[10] ^ 1]) + raw[11:])
    with pytest.raises(PackInvalid, match="sha256"):
        len(held(pack).ops[0].facts)


def test_facts_of_another_form_are_refused(pack):
    import hashlib

    for raw in (b'{"op": {"packed_ratio": "many"}}', b"[]", b"{", b'{"op": {}, "op": {}}', b'{"a\\u001b": {}}'):
        (pack / "facts.json").write_bytes(raw)
        rewrite(pack, facts_sha256=hashlib.sha256(raw).hexdigest())
        with pytest.raises(PackInvalid, match="facts.json"):
            len(held(pack).ops[0].facts)


def test_a_hash_that_is_none_is_refused_at_once(pack):
    for wrong in ("", "0" * 63, 7, None, ["0" * 64]):
        rewrite(pack, facts_sha256=wrong)
        with pytest.raises(PackInvalid, match="facts_sha256"):
            held(pack)
