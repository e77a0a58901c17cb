"""Serves a pack on a device as a server would: ``python -m tests.bench.gpu_bundle.served PACK --device cuda:0 --out FILE``.

One JSON line a check; needs torch. A check whose package is missing is left out and said so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from haotuner.errors import HaotunerError
from tests.bench.gpu_bundle.served_dense import CHECKS, Missing, Served
from tests.bench.gpu_bundle.served_products import groups, products


def _checks(path: Path, device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    kind = json.loads((path / "manifest.json").read_text())["ops"][0]["kind"]
    if kind in ("batch_matmul", "grouped"):
        yield kind, (products if kind == "batch_matmul" else groups)(path, device)
        return
    served = Served(path, device)
    for check in CHECKS:
        yield check.__name__, partial(check, served)


def answers(path: Path, device: str) -> Iterator[dict[str, Any]]:
    """One answer a check."""
    for name, check in _checks(path, device):
        began = time.monotonic()
        line: dict[str, Any] = {"pack": path.name, "check": name, "failed": ""}
        try:
            line["found"] = check()
        except Missing as error:
            line["left_out"] = str(error)
        except Exception as error:
            line["failed"] = f"{type(error).__name__}: {error}"[:600]
        yield line | {"seconds": round(time.monotonic() - began, 2)}


def main(arguments: list[str]) -> int:
    """Check a pack; 0 if all is right, 1 if something is not, 4 if it cannot be served here."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_bundle.served")
    parser.add_argument("pack", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        import torch

        wrong = 0
        with torch.inference_mode(), options.out.open("w") as file:
            for line in answers(options.pack, options.device):
                file.write(json.dumps(line) + "\n")
                file.flush()
                wrong += bool(line["failed"])
    except (HaotunerError, ImportError) as error:
        print(f"served: {error}", file=sys.stderr)
        return 4
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
