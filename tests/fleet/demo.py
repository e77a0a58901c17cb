"""A fleet on one host, whole: ``python -m tests.fleet.demo --out fleet-demo``, or ``make fleet-demo``.

Two nodes of one core each offer AVX2 and SSE; a host of one core has both on it. Records go to a PostgreSQL server, and one
node is killed and comes back while both are tuned. The packs are verified, and a browser opens the report and takes its
picture. Exit 1 where a step fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from haotuner.fleet.node import LOOPBACK, free_ports
from haotuner.fleet.offer import folder_of
from haotuner.records import open_store
from tests.cli.browser import BROWSER, DRIVER, browser
from tests.contract.postgres_server import PROGRAMS, databases

DEVICES = ("cpu:avx2", "cpu:sse")
OPS = ("--op", "dense:n=256,k=256", "--op", "dense:n=512,k=128", "--shapes", "m=1..64")
KILLED_AFTER = 6  # records: the run is in its middle
AWAY_S = 3.0  # that the killed node is away
START_S, STEP_S = 180.0, 600.0  # a node measures its profile when it starts


def haotuner(*words: str) -> list[str]:
    """The command line of haotuner in this environment."""
    return [sys.executable, "-m", "haotuner", *words]


@contextmanager
def node(words: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A node that offers its device; all its processes end at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            haotuner("fleet", "join", *words), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        end = time.monotonic() + START_S
        while b"offers" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"a node did not start: {log.read_text(errors='replace')[-500:]}")
            time.sleep(0.2)
        yield process
    finally:
        kill(process, signal.SIGTERM)


def kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a node; its processes are in its session."""
    if process.poll() is None:
        os.killpg(process.pid, number)
        process.wait(60)


def records_in(url: str) -> int:
    """Records of a store so far."""
    with closing(open_store(url)) as store:
        return sum(1 for _ in store.records())


def demo(out: Path, budget: str) -> None:
    """All steps, in order; prints a line for each."""
    gcs, client = free_ports(2)
    cores = sorted(os.sched_getaffinity(0))
    ends = (cores[0], cores[-1])
    of_node = [
        ("--host", LOOPBACK, "--device", name, "--cores", str(core)) for name, core in zip(DEVICES, ends, strict=True)
    ]
    head = ("--port", str(gcs), "--client-port", str(client), *of_node[0])
    join = ("--address", f"{LOOPBACK}:{gcs}", *of_node[1])
    with ExitStack() as stack:
        url = stack.enter_context(databases()).fresh()
        stack.enter_context(node(head, out / "head.log"))
        second = stack.enter_context(node(join, out / "node.log"))
        on = f"ray://{LOOPBACK}:{client}"
        subprocess.run(haotuner("fleet", "status", "--on", on), check=True)
        with closing(open_store(url)):
            pass  # the tables, so that records can be counted from now on
        words = ("--device", ",".join(DEVICES), "--on", on, "--db", url, "--budget", budget, "--out", str(out / "packs"))
        tune = subprocess.Popen(haotuner("tune", *OPS, *words, "--peers", "none"))
        while tune.poll() is None and records_in(url) < KILLED_AFTER:
            time.sleep(0.5)
        if tune.poll() is None:
            kill(second, signal.SIGKILL)
            print(f"killed the node of {DEVICES[1]} after {records_in(url)} records", flush=True)
            time.sleep(AWAY_S)
            stack.enter_context(node(join, out / "node-again.log"))
            print("it is back", flush=True)
        code = tune.wait(STEP_S)
        if code not in (0, 3):  # 3: some op was not measured within the budget; its pack is whole
            raise SystemExit(f"tune ended with {code}")
        subprocess.run(haotuner("records", "check", "--db", url), check=True)
        packs = [str(out / "packs" / folder_of(name)) for name in DEVICES]
        for pack in packs:
            subprocess.run(haotuner("verify", pack, "-q"), check=True)
        report = out / "report.html"
        subprocess.run(haotuner("report", *packs, url, "--out", str(report)), check=True)
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as chromium:
        chromium.resize(1280, 900, dark=False)
        chromium.open(report.resolve().as_uri())
        chromium.picture(out / "report.png")
        if messages := chromium.console():
            raise SystemExit(f"the page has messages: {messages}")
    print(
        f"packs of {', '.join(DEVICES)} in {out / 'packs'}, the report and its picture in {report} and {out / 'report.png'}"
    )


def main() -> None:
    """Run the demo where its programs are installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("fleet-demo"))
    parser.add_argument("--budget", default="60s")
    arguments = parser.parse_args()
    if PROGRAMS is None or DRIVER is None or BROWSER is None:
        raise SystemExit("the demo needs PostgreSQL and Chromium: apt-get install postgresql chromium chromium-driver")
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)
    demo(arguments.out, arguments.budget)


if __name__ == "__main__":
    main()
