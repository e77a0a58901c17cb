"""Manifest of a bundle: its kernels, where their code lies, and the hash of every file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from haotuner.errors import EnvironmentMissing, PackInvalid

BUNDLE_SCHEMA = 1
NAME = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kernel of one architecture."""

    kernel: str  # the micro-kernel's name, and the exported symbol
    family: str
    dtype: str
    library: str  # path in the bundle
    vector: int  # k, and X's row stride, must be multiples of it; with kn weights also n
    kn: bool
    tile: tuple[int, int]
    shared_bytes: int
    threads: int
    code: str = ""  # hash of the translation unit it was compiled from, and of the compiler's release
    facts: Mapping[str, float] = field(default_factory=dict)  # the compiler's report

    def takes(self, n: int, k: int, kn: bool) -> bool:
        """True if the kernel computes products of these static extents."""
        return self.kn == kn and k % self.vector == 0 and (not kn or n % self.vector == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An unpacked bundle."""

    root: Path
    name: str  # hash of sources and scripts, short
    judge: str  # hash of what checks and times: results of another judge are not gone on from
    version: str
    toolkit: str
    kernels: Mapping[str, tuple[Entry, ...]]  # by architecture
    probes: Mapping[str, str]
    device_names: Mapping[str, str]  # what drivers report, lower case, to the id of a hardware profile
    built: str  # when and from what

    def arch_for(self, major: int, minor: int) -> str:
        """The architecture whose code runs on this compute capability; EnvironmentMissing if none does.

        Code for sm_XY runs on X.Y and later minors of X; the ``a`` variants on their own capability only.
        """
        fits: list[tuple[int, str]] = []
        for arch in self.kernels:
            number = int(arch.removeprefix("sm_").rstrip("af"))
            exact = arch[-1].isalpha()
            if number // 10 == major and (number % 10 == minor if exact else number % 10 <= minor):
                fits.append((number, arch))
        if not fits:
            raise EnvironmentMissing(
                f"this GPU has compute capability {major}.{minor}, the bundle holds code for "
                f"{', '.join(sorted(self.kernels))}; build one for it: python -m haotuner.bundle build --arch sm_XY"
            )
        return max(fits)[1]

    def device_id(self, reported: str) -> str:
        """The profile id of a reported name, or the name itself as an id."""
        known = self.device_names.get(reported.strip().lower())
        words = "".join(c if c.isascii() and c.isalnum() else " " for c in reported.lower()).split()
        return known or "-".join(words) or "gpu"


def write(bundle: Bundle) -> None:
    """Write the manifest into the bundle's root, hashes of all other files included."""
    fields: dict[str, Any] = {name: getattr(bundle, name) for name in ("name", "judge", "version", "toolkit", "built")}
    fields["schema"] = BUNDLE_SCHEMA
    fields["kernels"] = {arch: [asdict(entry) for entry in entries] for arch, entries in bundle.kernels.items()}
    fields["probes"], fields["device_names"] = dict(bundle.probes), dict(bundle.device_names)
    fields["files"] = {
        str(path.relative_to(bundle.root)): digest(path)
        for path in sorted(bundle.root.rglob("*"))
        if path.is_file() and path.name != NAME
    }
    (bundle.root / NAME).write_text(json.dumps(fields, indent=1))


def read(root: Path) -> Bundle:
    """Read and verify an unpacked bundle; PackInvalid names the first file that is missing or changed."""
    try:
        fields = json.loads((root / NAME).read_text())
    except (OSError, ValueError) as error:
        raise PackInvalid(f"{root} is no bundle: {NAME}: {error}") from error
    if fields.get("schema") != BUNDLE_SCHEMA:
        raise PackInvalid(f"{root}: bundle schema {fields.get('schema')!r}; these scripts read {BUNDLE_SCHEMA}")
    for name, expected in fields["files"].items():
        path = root / name
        if not path.is_file() or digest(path) != expected:
            raise PackInvalid(f"{path} is {'changed' if path.is_file() else 'missing'}; unpack the archive again")
    kernels = {
        arch: tuple(Entry(**{**entry, "tile": tuple(entry["tile"])}) for entry in entries)
        for arch, entries in fields["kernels"].items()
    }
    return Bundle(
        root=root, name=fields["name"], judge=fields["judge"], version=fields["version"], toolkit=fields["toolkit"],
        built=fields["built"],
        kernels=kernels, probes=fields["probes"], device_names=fields["device_names"],
    )  # fmt: skip


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
