"""Keep an idle Ray worker process, in which a killed broker restarts at once.

Without an idle worker process, Ray has to start one before a killed actor is back: Python, Ray's modules and RayMQ's, 1
to 4 s on two busy cores. Ray has no call that starts a process ahead. But it starts one for an actor, and keeps the
process if the actor is killed before it has reached the process. The next actor of the same job on that node gets it.

Measured with Ray 2.60.0. Other observations with this version:
    An idle process that has run a task is not given to an actor, and for a task Ray starts two processes, not one. Ray
        keeps as many idle processes as the node has free CPUs, and none of a job whose driver has ended. So there is no
        spare process if the program that started the cluster has ended, as with `ray up`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raymq.actors.backoff import Backoff

#: The environment variable of Ray's processes that is "0" if brokers are to keep no spare process.
SPARE_PROCESS: Final = "RAYMQ_SPARE_PROCESS"

#: A broker makes its first spare process this long after its start, so that both do not compete for the processor.
_FIRST_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 5.0
#: A spare process that was idle for this long may be replaced at once.
_STEADY_SECONDS: Final = 60.0
_LONGEST_PAUSE_SECONDS: Final = 3600.0
#: The most seconds that Ray may take to start a process.
_START_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02
#: The most actors that are started for one process: each of them may get an idle process instead of a new one.
_MAX_TRIES: Final = 4

#: The titles that Ray gives to a worker process: any, an idle one, a broker's, and any RayMQ actor's.
_RAY: Final = "ray::"
_IDLE: Final = "ray::IDLE"
_BROKER: Final = re.compile(r"ray::Broker\b")
_OURS: Final = re.compile(r"ray::(Broker|NameServer|Keeper|Scheduler|Coordinator|Producer|Console)\b")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker process of this node that belongs to the broker's job."""

    pid: int
    title: str


def is_spare_enabled() -> bool:
    """Return True if brokers keep a spare process, by this process's environment."""
    return os.environ.get(SPARE_PROCESS) != "0"


def is_spare_owner(broker: int, workers: Iterable[WorkerProcess]) -> bool:
    """Return True if this broker keeps the node's spare process.

    It does if it has the lowest process id of the node's brokers.
    """
    return broker == min((each.pid for each in workers if _BROKER.match(each.title)), default=broker)


def is_spare(pid: int | None, workers: Iterable[WorkerProcess]) -> bool:
    """Return True if the process exists and is idle.

    A process that is still importing Ray has no title of Ray's yet, and counts as idle.
    """
    return any(each.pid == pid and (each.title == _IDLE or not each.title.startswith(_RAY)) for each in workers)


def was_reused(pid: int | None, workers: Iterable[WorkerProcess]) -> bool:
    """Return True if a RayMQ actor runs in the process."""
    return any(each.pid == pid and _OURS.match(each.title) is not None for each in workers)


class RespawnPolicy:
    """The schedule of making spare processes: at once, then with growing pauses.

    The pauses double up to an hour, so that processes that Ray soon ends or gives to other tasks do not cost a process
    start every few seconds. A spare process that was used, or idle for 60 s, is replaced at once again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made = self._not_before = clock()
        self._backoff = Backoff(first=_LOOK_SECONDS, factor=2.0, cap=_LONGEST_PAUSE_SECONDS)

    def is_due(self, is_idle: bool) -> bool:
        """Return True if a spare process is to be made now.

        `is_idle`: whether the last one exists, see `is_spare`.
        """
        now = self._clock()
        if is_idle:
            if now - self._made >= _STEADY_SECONDS:
                self.forget_failures()
            return False
        if now < self._not_before:
            return False
        self._made, self._not_before = now, now + self._backoff.next_delay()
        return True

    def forget_failures(self) -> None:
        """Reset the pauses, so that the next process is made at once."""
        self._backoff.reset()
        self._not_before = self._clock()


class _SpareActor:
    """An actor whose only purpose is that Ray starts a process for it.

    If the actor answers, it got a process that existed before.
    """

    def is_there(self) -> bool:
        """Return True: an answer means that the actor runs in a process that existed before."""
        return True


class SpareProcess:
    """One idle worker process per node, job and runtime environment, for crashed brokers.

    It is kept by a daemon thread. Failures are logged in one line at level INFO. Thread-safe.
    """

    def __init__(self, broker: str, node_id: str) -> None:
        self._broker = broker
        self._node_id = node_id
        self._job = ray.get_runtime_context().get_job_id()
        self._stopping = threading.Event()
        self._spare: int | None = None

    def begin(self) -> None:
        """Start the thread, unless the environment disables spare processes."""
        if is_spare_enabled():
            threading.Thread(target=self._keep, name=f"{self._broker}-spare", daemon=True).start()

    def stop(self) -> None:
        """Make no more spare processes. Ray ends the one that exists."""
        self._stopping.set()

    def _keep(self) -> None:
        upkeep, pause = RespawnPolicy(), _FIRST_SECONDS
        while not self._stopping.wait(pause):
            pause = _LOOK_SECONDS
            try:
                self._look(upkeep)
            except Exception as error:  # noqa: BLE001 - a broker works without it
                _log.info("%s has no spare process: %s: %s", self._broker, type(error).__name__, error)

    def _look(self, upkeep: RespawnPolicy) -> None:
        workers = self._workers()
        if was_reused(self._spare, workers):
            upkeep.forget_failures()
        if not is_spare(self._spare, workers):
            self._spare = None  # also if it becomes idle again: a process that has run a task gets no actor
        if not is_spare_owner(os.getpid(), workers) or not upkeep.is_due(self._spare is not None):
            return
        self._spare = self._make({each.pid for each in workers})
        if self._spare is None:
            _log.info("%s has no spare process: Ray started none", self._broker)

    def _make(self, before: set[int]) -> int | None:
        """Have Ray start a process for an actor, and kill the actor early.

        The actor is killed before it runs in the process, which stays idle. Return the process id, or None if Ray
        started no process.
        """
        here = NodeAffinitySchedulingStrategy(node_id=self._node_id, soft=False)
        kind: Any = ray.remote(_SpareActor)
        for _ in range(_MAX_TRIES):
            actor = kind.options(num_cpus=0, enable_task_events=False, scheduling_strategy=here).remote()
            try:
                if (pid := self._await_process(before, actor.is_there.remote())) is not None:
                    return pid
            finally:
                ray.kill(actor)
        return None

    def _await_process(self, before: set[int], answer: Any) -> int | None:
        """Return the process that Ray has started.

        Return None if the actor answers from a process that existed before, or after a time-out.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if started := {each.pid for each in self._workers()} - before:
                return min(started)
            if ray.wait([answer], timeout=_POLL_SECONDS)[0]:
                break
        return None

    def _workers(self) -> list[WorkerProcess]:
        """Return the worker processes of this broker's job on this node.

        They are the children of the broker's raylet.
        """
        found = []
        for process in psutil.Process(os.getppid()).children():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("RAY_JOB_ID") == self._job:
                    found.append(WorkerProcess(process.pid, "".join(process.cmdline()[:1])))
        return found
