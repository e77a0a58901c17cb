"""CLBlast's files: timings that its tuners write, and best-known parameters without times, which are winners.

The space of CLBlast's Xgemm: every configuration that its tuner's rules allow, in the values that its database uses.

Best-known parameters: one configuration a device and no times, so they are winners and never records. They come as JSON, or
as the header that CLBlast compiles (src/database/kernels/xgemm/xgemm_32.hpp).

Timings: ``clblast_xgemm_1_32.json`` and the like, as src/tuning/tuning.cpp writes them: the request, the device, then a list
of results with a time in ms each.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.errors import UsageError
from haotuner.host.files import open_regular
from haotuner.hw_profiles.profile import plain
from haotuner.hw_profiles.table import Known, known_names, stranger
from haotuner.records.kernel_tuner import XGEMM, CacheFile
from haotuner.records.text import SIZE_LIMIT_BYTES, read_text
from haotuner.spec.kernel import MicroKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """Values in the order of ``space.PARAMETERS``; the device as far as it is known, which may be its name only."""

    device: Known
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Winners:
    """Contents of one table of winners."""

    winners: tuple[Winner, ...]
    left_out: Counter[str] = field(default_factory=Counter)  # reason to number of rows
    notes: tuple[str, ...] = ()

    def vendors(self) -> tuple[str, ...]:
        """Those of the winners' devices, sorted."""
        return tuple(sorted({winner.device.vendor for winner in self.winners}))


PARAMETERS = ("GEMMK", "KREG", "KWG", "KWI", "MDIMA", "MDIMC", "MWG", "NDIMB", "NDIMC", "NWG", "SA", "SB", "STRM", "STRN",
              "VWM", "VWN")  # fmt: skip
Configs = NDArray[np.int64]  # shape (configurations, parameters), columns in the order of PARAMETERS
_TILES, _VECTORS, _SWITCH = (16, 32, 64, 128), (1, 2, 4, 8), (0, 1)
_THREADS = {0: (8, 16, 32), 1: (4, 8, 16, 32)}  # along an axis, of each of the two kernels


def xgemm_space() -> Configs:
    """Both kernels: 0 stages operands if asked to; 1 keeps tiles in registers and steps by KREG (its src/tuning/kernels)."""
    staged = [
        (0, 1, kwg, kwi, ma, mc, mwg, nb, nc, nwg, sa, sb, strm, strn, vm, vn)
        for mwg, mc, vm, ma in _axes(0)
        for nwg, nc, vn, nb in _axes(0)
        for kwg in (16, 32)
        if _loads(kwg, mc * nc, ma) and _loads(kwg, mc * nc, nb)
        for kwi in (2, 8)
        for strm, strn, sa, sb in product(_SWITCH, repeat=4)
    ]
    direct = [
        (1, kreg, 1, 1, mc, mc, mwg, nc, nc, nwg, 0, 0, 0, 0, vm, vn)
        for mwg, mc, vm, ma in _axes(1)
        if ma == mc
        for nwg, nc, vn, nb in _axes(1)
        if nb == nc
        for kreg in (1, 2, 4, 8, 16)
        if kreg % vn == 0
    ]
    return np.array(staged + direct, np.int64)


def _axes(kernel: int) -> list[tuple[int, int, int, int]]:
    """Tile, threads, vector and loading threads of one axis."""
    threads = _THREADS[kernel]
    return [
        (tile, of, vector, loading)
        for tile, of, vector, loading in product(_TILES, threads, _VECTORS, threads)
        if tile % (of * vector) == 0 and tile % (loading * vector) == 0
    ]


def _loads(kwg: int, threads: int, loading: int) -> bool:
    """True if the threads of a group, ``loading`` side by side, fetch whole rows of a block of steps."""
    return threads % loading == 0 and kwg % (threads // loading) == 0


def is_winners(text: str) -> bool:
    """True if a JSON file's beginning is that of such a table, which names parameters and rows instead of a cache."""
    head = text[:4000]
    table = '"parameters"' in head and '"kernel"' in head and '"cache"' not in head and '"kernel_family"' not in head
    return table or _HEADER_MARK in head


def is_winners_file(path: Path) -> bool:
    """True if a file begins like such a table; False too where it cannot be read."""
    try:
        with open_regular(path, SIZE_LIMIT_BYTES) as file:
            return is_winners(file.read(4000).decode("utf-8", errors="replace"))
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return False


def read_winners(path: Path) -> Winners:
    """Every usable row of one file; what is left out is counted.

    A device that no table knows stays, by the vendor that the file gives, with nothing else known of it.

    Raises:
        EnvironmentMissing: the file cannot be read.
        UsageError: no such table, or not one usable row.
    """
    text, stopped = read_text(path, "a table of CLBlast's best-known parameters")
    if _HEADER_MARK in text:
        return _winners_of(path, _rows_of_header(path, text))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: not JSON, or half a download ({stopped or str(error)[:80]}); half a table has winners of some "
            "vendors only: get the file again"
        ) from error
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise UsageError(f"{path}: no list of rows, each with a device and its best parameters")
    return _winners_of(path, rows)


def _winners_of(path: Path, rows: Sequence[Any]) -> Winners:
    space, names = {values.tobytes() for values in xgemm_space()}, known_names()
    result: dict[str, Winner] = {}
    left_out: Counter[str] = Counter()
    strangers = 0
    for row in rows:
        values = _values(row)
        if values is None:
            left_out["rows without a device, or without all sixteen parameters as whole numbers"] += 1
        elif np.array(values).tobytes() not in space:
            left_out["best parameters that are not in the space of the tuner"] += 1
        else:
            device = _device(row, names)
            strangers += not device.facts
            other = result.setdefault(device.id, Winner(device=device, values=values))
            if other.values != values:
                left_out[f"a second row of {device.name} with other parameters"] += 1
    if not result:
        why = "; ".join(f"{reason} ({count})" for reason, count in left_out.most_common(3)) or "it has no rows"
        raise UsageError(f"{path}: not one usable winner: {why}")
    notes = (f"{strangers} devices of which nothing but the name is known",) if strangers else ()
    return Winners(winners=tuple(result.values()), left_out=left_out, notes=notes)


_HEADER_MARK = "const DatabaseEntry "
_HEADER_NAMES = re.compile(r'const DatabaseEntry \w+ = \{\s*"(\w+)", Precision::k(\w+), \{([^}]*)\}')
_HEADER_ROW = re.compile(
    r'kDeviceType(?P<kind>\w+), "(?P<vendor>[^"]*)"|\{ "(?P<arch>[^"]*)", \{|'
    r'Name\{"(?P<name>[^"]*)"\}\s*, Params\{(?P<values>[^}]*)\}'
)
_END_OF_HEADER = "} // namespace clblast"


def _rows_of_header(path: Path, text: str) -> list[dict[str, Any]]:
    """Rows of a header of CLBlast's database, those of its defaults left out: they are nobody's.

    Raises:
        UsageError: of another kernel or precision, or cut.
    """
    names = _HEADER_NAMES.search(text)
    if not names or _END_OF_HEADER not in text:
        raise UsageError(f"{path}: a header of CLBlast's database that is cut, or of another form; get the file again")
    if names[1] != "Xgemm" or names[2] != "Single":
        raise UsageError(f"{path}: best parameters of {names[1]} in {names[2]} precision; known is Xgemm in Single")
    parameters = re.findall(r'"(\w+)"', names[3])
    absent = {"GEMMK": 0, "KREG": 1}  # of databases from before the second kernel
    rows: list[dict[str, Any]] = []
    at: dict[str, str] = {}
    for match in _HEADER_ROW.finditer(text):
        at |= {name: value for name, value in match.groupdict().items() if value is not None}
        if match["name"] is not None:
            values = [int(value) for value in re.findall(r"[0-9]+", match["values"])]
            best = {**absent, **dict(zip(parameters, values, strict=False))}
            row = {"device": at["name"].strip(), "vendor": at.get("vendor", ""), "architecture": at.get("arch", "")}
            rows.append({**row, "kind": at.get("kind", ""), "best": best})
    return rows


_TUNER_NAMES = ('"kernel_family"', '"results"', '"clblast_')
_DIRECT = {"MDIMA": "MDIMC", "NDIMB": "NDIMC", "KWG": "KREG", "KWI": "KREG"}  # of the second kernel, which stages nothing


def is_tuner_file(path: Path) -> bool:
    """True if a file begins as those that CLBlast's tuners write; False too where it cannot be read."""
    try:
        with open_regular(path, SIZE_LIMIT_BYTES) as file:
            head = file.read(4000).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return False
    return _TUNER_NAMES[0] in head and any(name in head for name in _TUNER_NAMES[1:])


def read_tuner(path: Path) -> CacheFile:
    """Timings of one file of CLBlast's tuner of Xgemm, as rows of a cache.

    The second kernel (GEMMK 1) has its steps in KREG, and stages nothing.

    Raises:
        EnvironmentMissing: the file cannot be read.
        UsageError: it is cut or no such file, or of another kernel.
    """
    text, stopped = read_text(path, "a file of CLBlast's tuner")
    try:
        content = json.loads(text)
        family, results = str(content["kernel_family"]), list(content["results"])
        sizes = tuple(int(content[name]) for name in ("arg_m", "arg_n", "arg_k"))
        device = str(content.get("clblast_device_name") or content["device"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = stopped or f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{path}: not a file of CLBlast's tuner, or half of it ({reason}); "
            "needed are kernel_family, arg_m, arg_n, arg_k, a device and results"
        ) from error
    if not re.fullmatch(r"xgemm(_[0-9]+)?", family):
        raise UsageError(f"{path}: timings of CLBlast's {family}; known is xgemm")
    rows: list[tuple[str, Mapping[str, Any]]] = []
    odd: Counter[str] = Counter()
    for at, result in enumerate(results):
        parameters = result.get("parameters") if isinstance(result, dict) else None
        if not isinstance(parameters, dict):
            odd["a result without parameters"] += 1
            continue
        rows.append((str(at), {**_as_staged(parameters), "time": result.get("time")}))
    keys = tuple(dict.fromkeys(key for _, row in rows for key in row if key != "time"))
    return CacheFile(
        path=path, device_name=device, kernel_name="Xgemm", problem_size=sizes, keys=keys, rows=tuple(rows), odd=odd
    )


def _as_staged(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of either kernel by the names of the first."""
    result = {key: value for key, value in parameters.items() if key not in ("GEMMK", "KREG")}
    if parameters.get("GEMMK") != 1:
        return result
    return {**result, **{name: parameters.get(own) for name, own in _DIRECT.items()}, "SA": 0, "SB": 0, "STRM": 0, "STRN": 0}


def kernel_of(winner: Winner) -> MicroKernel:
    """Micro-kernel of the family ``clblast_xgemm`` that a winner is."""
    return XGEMM.kernel(_as_staged(dict(zip(PARAMETERS, winner.values, strict=True))))


def _values(row: Any) -> tuple[int, ...] | None:
    best = row.get("best") if isinstance(row, dict) else None
    if not isinstance(best, dict) or not isinstance(row.get("device"), str):
        return None
    values = [best.get(name) for name in PARAMETERS]
    whole = [value for value in values if type(value) is int and abs(value) < 2**31]
    return tuple(whole) if len(whole) == len(PARAMETERS) else None


def _device(row: Mapping[str, Any], names: Mapping[str, Known]) -> Known:
    """As the tables know it, by name and architecture, then by name alone."""
    name, arch = row["device"], str(row.get("architecture", ""))
    known = names.get(plain(f"{name} ({arch})")) or names.get(plain(name))
    if known is not None:
        return known
    vendor = str(row.get("vendor", "")).lower()
    return stranger(name, vendor=vendor, on_cpu=row.get("kind") == "CPU", qualifier="" if arch == "default" else arch)
