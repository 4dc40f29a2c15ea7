"""What something costs this program and all that it has started: seconds, processor seconds, and memory at its peak."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

import psutil

_LOOK_SECONDS = 0.1
_WORKERS: Final = "Python workers"
_EXECUTOR: Final = "executor"
#: Whose command line has which words, in the order in which it is looked for them.
_KINDS: Final = {
    "-m raymq.spark_bridge.worker_daemon": _WORKERS,
    "-m pyspark.daemon": _WORKERS,
    "io.ray.runtime.runner.worker.DefaultWorker": _EXECUTOR,
    "org.apache.spark.deploy.SparkSubmit": "driver's JVM",
    "ray::Broker": "brokers",
    "kafka.Kafka": "Kafka",
}


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one turn. `by_kind` says whose processor seconds they are."""

    seconds: float
    by_kind: Mapping[str, float]

    @property
    def cpu_seconds(self) -> float:
        """Those of all processes."""
        return sum(self.by_kind.values())


def costs(work: Callable[[], float | None]) -> Costs:
    """What `work` costs; it may say itself how long it took. A process that ends within it counts for nothing."""
    before, begun = _cpu_seconds(), time.monotonic()
    told = work()
    took = time.monotonic() - begun if told is None else told
    by_kind: Counter[str] = Counter()
    for process, (kind, seconds) in _cpu_seconds().items():
        by_kind[kind] += seconds - before.get(process, (kind, 0.0))[1]  # type: ignore[assignment]
    return Costs(took, by_kind)


def _cpu_seconds() -> dict[int, tuple[str, float]]:
    found = {}
    for process, kind in _family():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        found[process.pid] = kind, times.user + times.system
    return found


def _family(without: int | None = None) -> Iterator[tuple[psutil.Process, str]]:
    """Our own process and all that it has started, each with what it is; but for one of these and what that has."""
    own = psutil.Process()
    yield own, "others"
    left_out = set()
    if without is not None:
        left_out = {without, *(process.pid for process in psutil.Process(without).children(recursive=True))}
    for process in own.children(recursive=True):
        if process.pid in left_out:
            continue
        try:
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        yield process, next((kind for words, kind in _KINDS.items() if words in command), "others")


class PeakMemory:
    """The most memory of its own, in MiB, that one Python worker and the executor's JVM have within the block.

    `without` is a program beside this one, which has a Spark of its own.
    """

    def __init__(self, without: int | None = None) -> None:
        self._without = without
        self._peaks: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def worker(self) -> int:
        """Of the largest Python worker."""
        return self._peaks[_WORKERS]

    @property
    def executor(self) -> int:
        """Of the executor's JVM, its heap included."""
        return self._peaks[_EXECUTOR]

    def _run(self) -> None:
        while True:
            for process, kind in _family(self._without):
                try:
                    told = process.memory_info()
                    size = (told.rss - told.shared) >> 20  # not what it sees of Ray's object store
                except psutil.Error:
                    continue
                self._peaks[kind] = max(self._peaks[kind], size)
            if self._ended.wait(_LOOK_SECONDS):
                return
