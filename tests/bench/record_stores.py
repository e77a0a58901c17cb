"""Records a second of several writers, and the time to open a large store: ``python -m tests.bench.record_stores``.

Every writer is a process with a connection of its own and commits one record at a time, as ``tune`` does. The large
stores hold the invented records of ``report_size``. Both databases lie in folders that are removed at the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from contextlib import closing
from multiprocessing.synchronize import Barrier
from pathlib import Path

from haotuner.records import open_store
from tests.bench.markdown import markdown_table
from tests.bench.report_size import RECORDS, fill
from tests.contract.postgres_server import databases
from tests.contract.record_examples import record

WRITERS, EACH = 8, 1_000
DURABLE = "-c fsync=on -c full_page_writes=on"  # as PostgreSQL is installed; the server of the tests has both off
LEAST_RECORDS_PER_S, MOST_OPENING_S = 2_000, 1.0  # the bars of both databases


def _write(url: str, writer: int, count: int, start: Barrier) -> None:
    batch = [record(m, op=f"dense_n8_k{8 + writer}") for m in range(1, count + 1)]
    with closing(open_store(url)) as store:
        store.append([record(1, session=f"first of {writer}")])
        start.wait()
        for single in batch:
            store.append([single])
        start.wait()


def records_per_second(url: str, writers: int, each: int) -> float:
    """Records a second of all writers together, from the first append to the last."""
    with closing(open_store(url)):
        pass  # the tables are there before the writers come
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(writers + 1)
    processes = [context.Process(target=_write, args=(url, at, each, barrier)) for at in range(writers)]
    for process in processes:
        process.start()
    barrier.wait()
    begin = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - begin
    for process in processes:
        process.join()
    with closing(open_store(url, write=False)) as store:
        count = sum(1 for _ in store.records())
    if count != writers * (each + 1):
        raise SystemExit(f"{url}: {count} records of {writers * (each + 1)}")
    return writers * each / seconds


def opening_seconds(url: str) -> float:
    """Seconds to open a store for writing; the better of two, since the first reads the file from the disk."""
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        with closing(open_store(url)):
            seconds.append(time.perf_counter() - begin)
    return min(seconds)


def main() -> int:
    """Print the table; 1 if a figure misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=WRITERS)
    parser.add_argument("--each", type=int, default=EACH, help="records of each writer")
    parser.add_argument("--records", type=int, default=RECORDS, help="records of the large stores")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, databases() as server:
        server.stop("fast")
        server.options = DURABLE
        server.begin()
        rates = {
            "SQLite": records_per_second(f"sqlite:///{folder}/w.db", arguments.writers, arguments.each),
            "PostgreSQL": records_per_second(server.fresh(), arguments.writers, arguments.each),
        }
        large = Path(folder) / "large.db"
        fill(large, arguments.records)
        opening = {"SQLite": opening_seconds(f"sqlite:///{large}")}
        url = server.fresh()
        with closing(open_store(url)):
            pass
        server.sql(url, _LARGE.format(count=arguments.records))
        opening["PostgreSQL"] = opening_seconds(url)
    rows = [(name, f"{rates[name]:,.0f}", f"{opening[name]:.3f}") for name in rates]
    heads = ("store", f"records/s of {arguments.writers} writers", f"s to open {arguments.records:,} records")
    print("\n".join(markdown_table(heads, rows)))
    return int(min(rates.values()) < LEAST_RECORDS_PER_S or max(opening.values()) > MOST_OPENING_S)


_LARGE = """
INSERT INTO haotuner.record (id, digest, record_schema, session, fingerprint, device_id, op, kernel, shape, threads,
    weights, split, trial_key, status, median_us, outcome, measured_at, seed, facts, repeat)
SELECT lpad(to_hex(n), 32, '0'), '', 1, 's', 'f', 'device-' || n / 60 % 4, 'dense_n' || 8 + n % 60 || '_k64',
    'cpu_dense_fp32__mr1_nr16_pw16_ku1_vl16_pf0', '{{"m":1}}', 1, 'cold', 'n', 'k' || n, 'timed', 10.0,
    '{{"max_error":0.0,"samples_us":[1.0]}}', 1.7e9, 0, '{{}}', 0 FROM generate_series(1, {count}) AS n
"""


if __name__ == "__main__":
    raise SystemExit(main())
