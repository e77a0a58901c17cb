"""Write the table by which records from before fingerprints of generated code count on (``haotuner/measure/rekeying.py``).

    python -m tests.bench.rekey_table --old FOLDER      a tree of the last version that hashed its sources

Run it with kernels and runtime as that version had them: their code goes into the table. Fingerprints are of this host's
devices and toolchain; rows of other hosts stay.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from haotuner.backends.backend import OBJECTS_WORD
from haotuner.backends.cpu.backend import CpuBackend
from haotuner.backends.fingerprint import Policy
from haotuner.errors import HaotunerError
from haotuner.hw_profiles.find import find_device
from haotuner.measure import rekeying
from haotuner.microkernels.index import families_for
from haotuner.partition.group_times import groups_fingerprint
from haotuner.spec.device import Device
from tests.contract.test_family import OPS

DEVICES = ("cpu", "cpu:avx512", "cpu:avx2", "cpu:sse")
WITNESSES = 2  # kernels of a family, the first and one in the middle of its space
LIMIT_S = 3600.0
TABLE = Path(rekeying.__file__).with_name("rekeyed.json")
OLD_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import haotuner
assert haotuner.__file__.startswith(sys.argv[1]), haotuner.__file__
from haotuner.backends.cpu.backend import CpuBackend
from haotuner.backends.fingerprint import Policy
from haotuner.hw_profiles.find import find_device
from haotuner.partition.group_times import GroupRecords
from haotuner.records import MemoryStore
device = find_device(sys.argv[2], measure=False)
print(json.dumps([CpuBackend().fingerprint(device, Policy()), GroupRecords(MemoryStore(), device)._fingerprint]))
"""


def devices() -> dict[str, Device]:
    """This host's, by the names that commands take."""
    known = {}
    for name in DEVICES:
        try:
            known[name] = find_device(name, measure=False)
        except HaotunerError:
            print(f"{name}: not on this host", file=sys.stderr)
    return known


def sessions(old: Path) -> dict[str, str]:
    """Old fingerprints of sessions, of operators and of groups, to new ones."""
    rows: dict[str, str] = {}
    for name, device in devices().items():
        words = [sys.executable, "-c", OLD_PROGRAM, str(old), name]
        ran = subprocess.run(words, capture_output=True, text=True, check=True)
        ops, groups = json.loads(ran.stdout)
        rows |= {ops: CpuBackend().fingerprint(device, Policy()), groups: groups_fingerprint(device)}
    return rows


def witnesses(device: Device) -> dict[str, list[str]]:
    """Some kernels of each family of CPUs."""
    names: dict[str, list[str]] = {}
    for op in OPS:
        try:
            families = families_for(op, "cpu")
        except HaotunerError:
            continue
        for family in families:
            if family.name not in names and (points := [point.name for point in family.points(op, device)]):
                names[family.name] = list(dict.fromkeys(points[at * len(points) // WITNESSES] for at in range(WITNESSES)))
    return names


def main() -> None:
    """Add this host's rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--objects", type=Path, help="folder of compiled objects")
    arguments = parser.parse_args()
    device = find_device("cpu", measure=False)
    kernels = witnesses(device)
    environment = {**os.environ, **({OBJECTS_WORD: str(arguments.objects)} if arguments.objects else {})}
    builder = CpuBackend().builder(environment)
    try:
        names = [name for of in kernels.values() for name in of]
        codes = builder.ask(CpuBackend().code_request(names, device), LIMIT_S)["code"]
    finally:
        builder.close()
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    table["sessions"] |= sessions(arguments.old.resolve())
    table["code"] |= {family: {name: codes[name] for name in of} for family, of in sorted(kernels.items())}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
