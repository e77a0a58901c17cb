"""The whole model under load: ``python -m tests.bench.end_to_end --pack DIR [--threads 2] [--requests 400] [--page FILE]``.

Each contender serves the same encoder in a process of its own, one running at a time; clients on loopback keep a bounded
number of requests open. Rounds alternate the order of the contenders, so that drift of the machine meets all alike. Needs
torch, fastapi and uvicorn; onnxruntime and openvino where they are installed. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench.encoder import TINY, Size, lengths
from tests.bench.end_to_end_page import page
from tests.bench.server import CONTENDERS, OURS

START_LIMIT_S = 180  # torch.compile of twelve layers takes a minute or two


def load(port: int, requests: list[list[int]], concurrency: int) -> tuple[list[float], float, list[float]]:
    """Latencies in ms, wall time in s, and the answers in the order of the requests."""
    latency, answers = [0.0] * len(requests), [0.0] * len(requests)
    at, lock = iter(range(len(requests))), threading.Lock()
    problems: list[BaseException] = []

    def client() -> None:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            while True:
                with lock:
                    index = next(at, None)
                if index is None:
                    return
                begin = time.perf_counter()
                line.request("POST", "/encode", json.dumps({"ids": requests[index]}), {"Content-Type": "application/json"})
                reply = line.getresponse()
                body = json.loads(reply.read())
                latency[index] = (time.perf_counter() - begin) * 1e3
                if reply.status != 200:
                    raise RuntimeError(f"status {reply.status}: {body}")
                answers[index] = body["first"]
        except BaseException as error:
            problems.append(error)
        finally:
            line.close()

    clients = [threading.Thread(target=client) for _ in range(concurrency)]
    begin = time.perf_counter()
    for child in clients:
        child.start()
    for child in clients:
        child.join()
    if problems:
        raise problems[0]
    return latency, time.perf_counter() - begin, answers


def serve(name: str, args: argparse.Namespace, requests: list[list[int]]) -> dict[str, Any]:
    """Start a contender, load it, stop it."""
    command = [sys.executable, "-m", "tests.bench.server", name, str(args.threads), *(["--tiny"] if args.tiny else [])]
    if name in OURS:
        command += ["--pack", args.pack]
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    watchdog = threading.Timer(START_LIMIT_S, server.kill)
    watchdog.start()
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        if not port:
            return {"missing": f"{name} did not start (exit {server.wait()})"}
        watchdog.cancel()
        load(int(port), requests[: max(8, args.concurrency)], args.concurrency)  # connections and caches
        latency, wall, answers = load(int(port), requests, args.concurrency)
    finally:
        watchdog.cancel()
        server.terminate()
        server.wait()
    return {"latency": latency, "wall": wall, "answers": answers}


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of all lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def document(rounds: dict[str, list[dict[str, Any]]], count: int) -> dict[str, Any]:
    """Rows by contender, and ratios to ours (over 1: ours is faster)."""
    rows: dict[str, dict[str, float]] = {}
    for name, results in rounds.items():
        if results:
            latency = [ms for result in results for ms in result["latency"]]
            rows[name] = {
                "p50_ms": percentile(latency, 0.50),
                "p99_ms": percentile(latency, 0.99),
                "requests_per_s": count * len(results) / sum(result["wall"] for result in results),
            }
    ours = rows["ours"]
    ratios = {
        name: {"p50": row["p50_ms"] / ours["p50_ms"], "p99": row["p99_ms"] / ours["p99_ms"],
               "throughput": ours["requests_per_s"] / row["requests_per_s"]}
        for name, row in rows.items() if name != "ours"
    }  # fmt: skip
    reference = rounds["eager"][0]["answers"] if rounds.get("eager") else rounds["ours"][0]["answers"]
    apart = {
        name: max(abs(a - b) for a, b in zip(results[0]["answers"], reference, strict=True))
        for name, results in rounds.items() if results
    }  # fmt: skip
    by_round = {
        name: [percentile(result["latency"], 0.50) for result in results] for name, results in rounds.items() if results
    }
    return {"rows": rows, "ratios": ratios, "largest_difference": apart, "p50_by_round": by_round}


def busy_s() -> tuple[float, float]:
    """CPU seconds that the whole machine has worked, and those of this process and the servers it waited for."""
    fields = [int(word) for word in Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    mine = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    worked = sum(fields) - fields[3] - fields[4]  # all but idle and iowait
    return worked / os.sysconf("SC_CLK_TCK"), sum(usage.ru_utime + usage.ru_stime for usage in mine)


def cpu_name() -> str:
    """As the kernel says it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "an unknown CPU"


def main() -> int:
    """Print the table or JSON; 1 if answers disagree."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--pack", required=True)
    reader.add_argument("--threads", type=int, default=2)
    reader.add_argument("--requests", type=int, default=400)
    reader.add_argument("--concurrency", type=int, default=4)
    reader.add_argument("--rounds", type=int, default=2)
    reader.add_argument("--contenders", default=",".join(CONTENDERS))
    reader.add_argument("--tiny", action="store_true")
    reader.add_argument("--json", action="store_true")
    reader.add_argument("--page", type=Path, help="write the result there, e.g. docs/results/end-to-end.md")
    args = reader.parse_args()
    size, draw = TINY if args.tiny else Size(), random.Random(1)
    requests = [[draw.randrange(size.words) for _ in range(tokens)] for tokens in lengths(args.requests)]
    names = [
        name
        for name in args.contenders.split(",")
        if name not in ("onnxruntime", "openvino") or importlib.util.find_spec(name)
    ]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    begin, (worked, mine) = time.monotonic(), busy_s()
    missing = [name for name in args.contenders.split(",") if name not in names]
    for turn in range(args.rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            if any(word.startswith(f"{name} did not start") for word in missing):
                continue
            result = serve(name, args, requests)
            if "missing" in result:
                missing.append(result["missing"])
            else:
                rounds[name].append(result)
    if not rounds.get("ours"):
        print(f"ours was not measured: {'; '.join(missing)}", file=sys.stderr)
        return 1
    worked, mine = (now - before for now, before in zip(busy_s(), (worked, mine), strict=True))
    others = max(0.0, worked - mine) / (time.monotonic() - begin) / (os.cpu_count() or 1)
    answer = {"threads": args.threads, "concurrency": args.concurrency, "requests": args.requests, "rounds": args.rounds,
              "load_of_others": others, "missing": list(dict.fromkeys(missing)),
              **document(rounds, args.requests)}  # fmt: skip
    if args.json:
        print(json.dumps(answer, indent=1))
    else:
        for name, row in answer["rows"].items():
            times = f"p50 {row['p50_ms']:8.2f} ms   p99 {row['p99_ms']:8.2f} ms"
            print(f"{name:12} {times}   {row['requests_per_s']:8.1f} requests/s")
    if args.page is not None:
        cores = len(os.sched_getaffinity(0))
        host = f"{cores} cores of {cpu_name()}, torch {version('torch')}"
        command = f"python -m tests.bench.end_to_end --pack PACK --threads {args.threads} --requests {args.requests}"
        args.page.write_text(page(answer, f"{command} --rounds {args.rounds} --page {args.page}", host), encoding="utf-8")
    return 0 if all(apart < 1e-3 for apart in answer["largest_difference"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
