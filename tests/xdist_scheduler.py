"""Distribute tests to the processes of pytest-xdist by file, and by their use of Ray and Spark.

A file's mark tells what its tests use: `spark` is Spark on a Ray, `ray` is a Ray, or programs that start one. The
process that distributes tests knows only their names, so the marks are read from the source of their files.

There are more processes than cores, since tests wait for processes, sockets and disks. Files with Spark are one unit,
so that two Spark clusters never run at once and its sessions are shared; no more than `RAYS` processes use Ray at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

#: The most processes with a Ray at once, with or without Spark; each Ray has a dozen processes.
RAYS: Final = 2
_ROOT: Final = Path(__file__).resolve().parents[1]
_MARK: Final = re.compile(r"\bpytest\.mark\.(ray|spark)\b")
#: Files that take 20 seconds or more, about the longest first. They begin before all others but Spark.
_LONGEST: Final = (
    "tests/integration/test_readme.py",
    "tests/integration/test_replicas.py",
    "tests/crash/test_replicas.py",
    "tests/crash/test_commit_kill.py",
    "tests/interop/store/test_rocketmq_store.py",
    "tests/integration/test_cluster.py",
    "tests/integration/test_broker_deaths.py",
    "tests/crash/test_copy_kill.py",
    "tests/crash/test_replica_rejoin.py",
    "tests/crash/test_killed_replicas.py",
    "tests/unit/storage/journal/test_format_1.py",
    "tests/unit/storage/journal/test_format_2.py",
    "tests/integration/test_cluster_start.py",
    "tests/integration/test_cluster_start_signals.py",
    "tests/crash/test_properties.py",
    "tests/integration/test_doctor.py",
    "tests/crash/test_state_prefixes.py",
    "tests/crash/test_file_damage.py",
    "tests/integration/test_outbox.py",
    "tests/chaos/test_kill_each_actor.py",
    "tests/crash/test_replica_kill.py",
    "tests/integration/test_worker_processes.py",
    "tests/integration/test_shared_producer_death.py",
    "tests/chaos/test_failover.py",
)


class RayAwareScheduling(LoadScopeScheduling):
    """Assigns units of work in order, but delays those that exceed the Ray limit."""

    def _split_scope(self, nodeid: str) -> str:
        return work_unit(nodeid, self.config.rootpath)

    def _assign_work_unit(self, node: Any) -> None:
        unit = self._next_for(node)
        if unit is None:
            node.shutdown()  # all remaining units need Ray, and enough processes run one
            return
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)

    def _next_for(self, node: Any) -> str | None:
        others = (work for each, work in self.assigned_work.items() if each is not node)
        rays = sum(any(_is_pending(tests) and self._has_ray(tests) for tests in work.values()) for work in others)
        return next((unit for unit, tests in self.workqueue.items() if rays < RAYS or not self._has_ray(tests)), None)

    def _has_ray(self, tests: dict[str, bool]) -> bool:
        return bool(ray_marks(next(iter(tests)), self.config.rootpath))


def work_unit(nodeid: str, root: Path = _ROOT) -> str:
    """Return the unit of work that a test belongs to."""
    return "spark" if "spark" in ray_marks(nodeid, root) else nodeid.partition("::")[0]


def unit_order(nodeid: str, root: Path = _ROOT) -> int:
    """Return the sort key of a test's unit; smaller ones begin earlier."""
    unit = work_unit(nodeid, root)
    if unit == "spark":
        return 0
    if unit in _LONGEST:
        return 1 + _LONGEST.index(unit)
    return 1 + len(_LONGEST) + ("ray" not in ray_marks(nodeid, root)) + ("/unit/" in unit)


def ray_marks(nodeid: str, root: Path = _ROOT) -> frozenset[str]:
    """Return the marks `ray` and `spark` of a test's file."""
    return _marks(root / nodeid.partition("::")[0])


@cache
def _marks(file: Path) -> frozenset[str]:
    return frozenset(_MARK.findall(file.read_text("utf-8")))


def _is_pending(tests: dict[str, bool]) -> bool:
    return not all(tests.values())


@contextlib.contextmanager
def run_first_alone(lock: Path) -> Iterator[None]:
    """Let the first process run alone, and the processes that arrived meanwhile together afterwards."""
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        yield
