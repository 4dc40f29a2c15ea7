"""The store beside what the machine can do at all: `python bench_store.py [--json] [--quick] [--only WORD...]`.

Every rate stands beside a baseline that was taken in the same run, for a machine has good and bad hours: copying
memory into a mapping whose pages are present, `os.pwrite` of the same bytes, a bare fdatasync. No row has a
goal: a rate that another machine reached on another day says nothing of this one, and RocketMQ's store code, which
would be the measure, needs a JVM that not every machine has.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

import raymq.actors  # noqa: F401 - hands the store what is compiled, as brokers and clients do
from raymq.storage.config import StoreConfig
from raymq.storage.records import native_kernels
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.records.unique_key_generator import UniqueKeyGenerator
from raymq.storage.store import Store

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a program: the tests' folder is not installed

from tests.polling import poll_until

MIB = 1 << 20
CONFIG = StoreConfig(disk_refuse_ratio=1.0)
Batch = tuple[bytes, npt.NDArray[np.int32]]


@dataclass
class Row:
    """One line of the table; `ratio` is that to the baseline, where there is one."""

    name: str
    value: float
    unit: str
    baseline: str = ""
    ratio: float | None = None


class Bench:
    """The rows so far, and the baselines in bytes a second."""

    def __init__(self, directory: Path, quick: bool) -> None:
        self.directory = directory
        self.quick = quick
        self.rows: list[Row] = []
        self.memcpy = self.pwrite = 0.0

    def add(self, name: str, value: float, unit: str, **rest: object) -> None:
        row = Row(name, float(value), unit, **rest)  # type: ignore[arg-type]
        self.rows.append(row)
        print(show(row), file=sys.stderr, flush=True)

    @contextmanager
    def fresh(self) -> Iterator[Path]:
        """An empty directory, gone afterwards."""
        path = Path(tempfile.mkdtemp(dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def show(row: Row) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio:7.0%} of {row.baseline}"
    return f"{row.name:<58} {row.value:>12,.1f} {row.unit:<10} {ratio}".rstrip()


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def batches(body_bytes: int, count: int, *, keys: bool = False, limit: int = MIB) -> list[Batch]:
    """`count` batches of about `limit` bytes; every record has a unique key, as all that producers send."""
    source, body = UniqueKeyGenerator(), os.urandom(body_bytes)
    made: list[Batch] = []
    number = 0
    for _ in range(count):
        records: list[bytes] = []
        room = limit
        for unique in source.take(limit // body_bytes).to_pylist():
            named = {"UNIQ_KEY": unique} | ({"KEYS": f"order-{number}", "TAGS": f"t{number % 7}"} if keys else {})
            record = encode(
                "orders", 0, body, encode_properties(named), born_timestamp_ms=1, born_host=b"\x7f\0\0\1\0\0\0\0"
            )
            if len(record) > room:
                break
            room -= len(record)
            number += 1
            records.append(record)
        made.append((b"".join(records), np.array([len(record) for record in records], np.int32)))
    return made


class Prefaulted:
    """A mapping whose pages are all present: the fastest place that a file has."""

    def __init__(self, directory: Path, size: int) -> None:
        self.size = size
        with (directory / "prefaulted").open("w+b") as file:
            file.truncate(size)
            self.view = memoryview(mmap.mmap(file.fileno(), size))
        self._at = 0
        for at in range(0, size, MIB):
            self.view[at : at + MIB] = bytes(MIB)

    def copy(self, content: bytes) -> None:
        """Copy it behind what was copied last."""
        self._at = self._at if self._at + len(content) <= self.size else 0
        self.view[self._at : self._at + len(content)] = content
        self._at += len(content)


def baselines(bench: Bench) -> None:
    size = 256 * MIB
    source = os.urandom(MIB)
    with bench.fresh() as directory:
        target = Prefaulted(directory, size)
        times = [seconds(lambda: target.copy(source)) for _ in range(512)]
        bench.memcpy = MIB / float(np.median(times))
        bench.add("baseline: memcpy into a pre-faulted mapping", bench.memcpy / 1e9, "GB/s")
    with bench.fresh() as directory:
        fd = os.open(directory / "file", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, size)
        took = seconds(lambda: [os.pwrite(fd, source, at) for at in range(0, size, MIB)])
        bench.pwrite = size / took
        bench.add("baseline: os.pwrite into a new file", bench.pwrite / 1e9, "GB/s")
        os.close(fd)
    bodies = [source[at : at + 1024] for at in range(0, MIB, 1024)]
    for name, crc32 in (("zlib", zlib.crc32), ("zlib-ng", zlib_ng.crc32)):
        took = min(seconds(lambda: list(map(crc32, bodies))) for _ in range(20))  # noqa: B023
        bench.add(f"baseline: {name}'s CRC of 1 KiB, one call each", MIB / took / 1e9, "GB/s")


def append_batches(bench: Bench) -> None:
    """Batches in bursts that stay within what the store has prepared, each beside a memcpy of the same bytes."""
    for body_bytes, keys in ((1024, False), (100, False), (100, True)):
        source = batches(body_bytes, 16, keys=keys)
        volume, count = len(source[0][0]), len(source[0][1])
        label = f"1 MiB batches of {body_bytes} B{', key and tag' if keys else ''}"
        with bench.fresh() as directory, Store.open(directory / "store", CONFIG) as store:
            target = Prefaulted(directory, 256 * MIB)
            for check_crc in (True, False):
                appends, copies = [], []
                for _ in range(4 if bench.quick else 12):
                    settle(store)
                    for batch in source:
                        copies.append(seconds(lambda: target.copy(batch[0])))  # noqa: B023
                        appends.append(seconds(lambda: store.append(*batch, check_crc=check_crc)))  # noqa: B023
                trusted = "" if check_crc else ", CRC not checked"
                for name, share in (("median", 50), ("best tenth", 10)):
                    took, copy = (float(np.percentile(times, share)) for times in (appends, copies))
                    bench.add(
                        f"append, {label}{trusted}, {name}",
                        volume / took / 1e9,
                        "GB/s",
                        baseline="memcpy",
                        ratio=copy / took,
                    )
                    bench.add(
                        "   the same",
                        count / took / 1e6,
                        "M/s",
                    )
            if keys:
                continue
            rounds = 4 if bench.quick else 16
            took = seconds(lambda: [store.append(*b) for _ in range(rounds) for b in source])  # noqa: B023
            rate = rounds * len(source) * volume / took
            bench.add(
                f"append, {label}, {rounds * len(source)} MiB at a stretch",
                rate / 1e9,
                "GB/s",
                baseline="os.pwrite",
                ratio=rate / bench.pwrite,
            )
            fetch(bench, store, target, f"1 MiB of {body_bytes} B", check_crc=True)
            fetch(bench, store, target, f"1 MiB of {body_bytes} B, CRC left to the client", check_crc=False)
            store.close()
            with Store.open(directory / "store", CONFIG) as again:
                fetch(bench, again, target, "the same, first time after opening", check_crc=False)


def fetch(bench: Bench, store: Store, target: Prefaulted, label: str, *, check_crc: bool) -> None:
    """Read and copy to where a socket would take it from, each beside a memcpy of the same bytes."""
    buffer = bytearray(2 * MIB)
    offset, end = 0, store.max_offset("orders", 0)
    reads, copies, volumes, counts = [], [], [], []
    while offset < end:
        begin = time.perf_counter()
        with store.read("orders", 0, offset, 16_384, MIB, check_crc=check_crc) as lease:
            content = lease.records
            buffer[: len(content)] = content
            reads.append(time.perf_counter() - begin)
            copies.append(seconds(lambda: target.copy(content)))  # noqa: B023
            offset = lease.next_offset
            volumes.append(len(content))
            counts.append(len(lease))
    took, copy = float(np.median(reads)), float(np.median(copies))
    bench.add(
        f"fetch and copy, {label}, median",
        float(np.median(volumes)) / took / 1e9,
        "GB/s",
        baseline="memcpy",
        ratio=copy / took,
    )
    bench.add("   the same", float(np.median(counts)) / took / 1e6, "M/s")


def empty_call_seconds() -> float:
    """What a call costs: how fast this machine's interpreter is at the moment."""

    def nothing() -> None:
        pass

    def calls() -> None:
        for _ in range(10_000):
            nothing()

    return min(seconds(calls) for _ in range(20)) / 10_000


def one_by_one(bench: Bench) -> None:
    singles: list[Batch] = []
    for records, sizes in batches(100, 5, keys=True):
        ends = np.cumsum(sizes).tolist()
        singles += [
            (records[end - size : end], np.array([size], np.int32))
            for end, size in zip(ends, sizes.tolist(), strict=True)
        ]

    def append_all() -> None:
        for records, sizes in singles:
            store.append(records, sizes)

    with bench.fresh() as directory, Store.open(directory, CONFIG) as store:
        settle(store)
        took = min(seconds(append_all) for _ in range(5)) / len(singles)
        bench.add("append one by one, 100 B, key and tag", 1 / took, "/s")
        bench.add("   the same, in calls of an empty Python function", took / empty_call_seconds(), "")


def query(bench: Bench) -> None:
    entries = 100_000 if bench.quick else 1_000_000
    config = StoreConfig(disk_refuse_ratio=1.0, index_slots=entries // 4, index_entries=entries)
    source = batches(100, entries // 8000 + 1, keys=True)
    with bench.fresh() as directory, Store.open(directory, config) as store:
        count = 0
        for batch in source:
            store.append(*batch)
            count += len(batch[1])
        chosen = np.random.default_rng(1).integers(0, count, 2000).tolist()
        times = [seconds(lambda: store.query("orders", f"order-{n}", 0, 1 << 60, 32)) for n in chosen]  # noqa: B023
        typical, late = np.percentile(times, (50, 99)) * 1e6
        bench.add(f"query by key, {2 * count:,} keys in full files", typical, "us")
        bench.add("   the same, p99", late, "us")


def in_child(work: Callable[[], None]) -> None:
    """Run it in a process that dies without closing anything."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("the child failed")


def recovery(bench: Bench) -> None:
    size = (128 if bench.quick else 1000) * MIB
    with bench.fresh() as directory:

        def write() -> None:
            store = Store.open(directory, CONFIG)
            source = batches(1024, 16)
            while store.max_physical_offset < size:
                for batch in source:
                    store.append(*batch)
            store.flush()

        in_child(write)
        begin = time.perf_counter()
        store = Store.open(directory, CONFIG)
        took = time.perf_counter() - begin
        records = store.recovery.records
        store.close()
        bench.add(f"recovery of an unclean {size // MIB} MiB, {records:,} records", took, "s")


def many_queues(bench: Bench) -> None:
    topics = 100 if bench.quick else 1000
    with bench.fresh() as directory:

        def write() -> None:
            with Store.open(directory, CONFIG) as store:
                for topic in range(topics):
                    records = [
                        encode(f"topic-{topic}", queue, b"x" * 50, b"", born_timestamp_ms=1, born_host=bytes(8))
                        for queue in range(10)
                    ]
                    store.append(b"".join(records), np.array([len(record) for record in records], np.int32))

        in_child(write)
        # In a process of its own: this one has memory that it freed and would use again.
        done = subprocess.run(
            [sys.executable, "-c", OPEN_AND_TELL, str(directory)], check=True, stdout=subprocess.PIPE, text=True
        )
        told = json.loads(done.stdout)
        took, added = told["seconds"], told["anonymous"]
        bench.add(f"open with {topics * 10:,} queues", took, "s")
        bench.add("   the same, memory added (anonymous)", added / MIB, "MiB")
        bench.add("   the same, descriptors of the process", told["descriptors"], "")
        bench.add("   the same, mappings of the process", told["mappings"], "")


OPEN_AND_TELL = """
import json, os, sys, time
from pathlib import Path
from raymq.storage.config import StoreConfig
from raymq.storage.store import Store

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

before, begin = anonymous(), time.perf_counter()
store = Store.open(sys.argv[1], StoreConfig(disk_refuse_ratio=1.0))
seconds = time.perf_counter() - begin
told = {
    "seconds": seconds,
    "anonymous": anonymous() - before,
    "descriptors": len(os.listdir("/proc/self/fd")),
    "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
}
store.close()
print(json.dumps(told))
"""


def settle(store: Store) -> None:
    """Wait until the files ahead of the writer are prepared, as in any pause of a broker."""
    ahead = store._parts.log._ahead
    assert ahead is not None
    # It says last from where on it has to go on.
    poll_until(lambda: not ahead._work.is_set() and ahead._wake_at == ahead._prepared_to - ahead._window // 2)


def paced_appends(store: Store, count: int, *, delete: bool) -> tuple[list[float], list[float]]:
    """Latencies of appends of 16 KiB at about 40 MB/s, and of letting old files go in between, as a broker does."""
    source = batches(1024, 8, limit=16 * 1024)
    settle(store)
    appends, deletions = [], []
    for number in range(count):
        appends.append(seconds(lambda: store.append(*source[number % 8])))  # noqa: B023
        if delete and number % 500 == 499:
            deletions.append(seconds(lambda: store.delete_expired(asked=True)))
        time.sleep(0.0003)  # The pace; nothing is waited for.
    return appends, deletions


def rolling(bench: Bench) -> None:
    """What the writer waits for while files roll, a flush runs and old files are deleted, beside none of these."""
    count = 2000 if bench.quick else 5000
    never, often = 3_600_000, 50
    p999 = {}
    for name, file_bytes, flush_ms, delete in (
        ("nothing beside it", 1 << 30, never, False),
        ("files of 16 MiB roll", 16 * MIB, never, False),
        ("a flush every 50 ms", 1 << 30, often, False),
        ("files roll, flushes, old files deleted", 16 * MIB, often, True),
    ):
        config = StoreConfig(
            disk_refuse_ratio=1.0, commitlog_file_bytes=file_bytes, flush_interval_ms=flush_ms, retention_hours=1e-9
        )
        with bench.fresh() as directory, Store.open(directory, config) as store:
            times, deletions = paced_appends(store, count, delete=delete)
            store.wait_for_removals()
            deleted = store.min_physical_offset // file_bytes
        p999[name] = float(np.percentile(times, 99.9)) * 1e3
        bench.add(f"append 16 KiB, {name}: p99.9", p999[name], "ms")
        bench.add("   the same: longest", max(times) * 1e3, "ms")
        if delete:
            bench.add(f"   letting go of {deleted} files, longest run", max(deletions) * 1e3, "ms")
    quiet = p999.pop("nothing beside it")
    for name, late in p999.items():
        bench.add(f"   {name}: adds at p99.9", late - quiet, "ms")


def group_commit(bench: Bench) -> None:
    """Each round `waiters` records come in and share one flush, which runs in a thread as the broker's does."""
    rounds = 50 if bench.quick else 200
    records, sizes = batches(1024, 1)[0]
    single = (records[: int(sizes[0])], sizes[:1])
    config = StoreConfig(disk_refuse_ratio=1.0, flush="sync")
    for waiters in (1, 8, 64):
        with (
            bench.fresh() as directory,
            Store.open(directory / "store", config) as store,
            ThreadPoolExecutor(1) as pool,
        ):
            fd = os.open(directory / "file", os.O_RDWR | os.O_CREAT)
            os.posix_fallocate(fd, 0, 64 * MIB)
            at = 0
            settle(store)
            bare, handed, shared = [], [], []
            for _ in range(rounds):
                begin = time.perf_counter()
                os.pwrite(fd, single[0] * waiters, at)
                os.fdatasync(fd)
                bare.append(time.perf_counter() - begin)
                at += waiters * len(single[0])
                begin = time.perf_counter()
                os.pwrite(fd, single[0] * waiters, at)
                pool.submit(os.fdatasync, fd).result()
                handed.append(time.perf_counter() - begin)
                at += waiters * len(single[0])
                begin = time.perf_counter()
                for _ in range(waiters):
                    store.append(*single)
                pool.submit(store.flush).result()
                shared.append(time.perf_counter() - begin)
            os.close(fd)
            typical = [float(np.median(times)) for times in (bare, handed, shared)]
            bench.add(f"baseline: os.pwrite of {waiters} KiB and fdatasync", 1 / typical[0], "/s")
            bench.add("baseline: the same, fdatasync in another thread", 1 / typical[1], "/s")
            for name, baseline in (("fdatasync", typical[0]), ("in a thread", typical[1])):
                bench.add(
                    f"sync flush, rounds of {waiters} waiting",
                    1 / typical[2],
                    "/s",
                    baseline=name,
                    ratio=baseline / typical[2],
                )
            bench.add("   the same: messages", waiters / typical[2], "/s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout, the table on stderr")
    parser.add_argument("--quick", action="store_true", help="smaller amounts")
    parser.add_argument("--only", nargs="+", default=[""], help="only measurements whose name has one of these words")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the stores are made")
    parser.add_argument("--without-native", action="store_true", help="NumPy alone, as where raymq-native is missing")
    options = parser.parse_args()
    if options.without_native:
        native_kernels.use(None)
    bench = Bench(options.directory, options.quick)
    baselines(bench)
    for measure in (append_batches, one_by_one, query, recovery, many_queues, rolling, group_commit):
        if any(word in measure.__name__ for word in options.only):
            measure(bench)
    if options.json:
        print(json.dumps([asdict(row) for row in bench.rows]))
    else:
        print("\n".join(show(row) for row in bench.rows))


if __name__ == "__main__":
    main()
