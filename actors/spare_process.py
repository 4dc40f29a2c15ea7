"""An idle worker process of Ray, in which a killed broker starts again at once.

Where no idle worker process is there, Ray has to start one before a killed actor is back: Python, Ray's modules and
ours, 1 to 4 s on two busy cores. Ray has no call that starts one ahead. But it starts one for an actor, and keeps it
where the actor is killed before the process has come to it. The next actor of the same job on that node gets it.

Measured with Ray 2.60.0. What else it does there:
    An idle process that has run a task is not given to an actor; and for a task Ray starts two processes, not one.
    Of idle processes it keeps as many as the node has free CPUs, and none of a job whose driver has ended. So there is
    no spare process where the program that started the cluster has ended, as with `ray up`.
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

#: In the environment of Ray's processes: "0" where brokers keep no spare process.
SPARE_PROCESS: Final = "RAYMQ_SPARE_PROCESS"

#: How long after its start a broker begins, so that the other process does not take the processor from it.
_FIRST_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 5.0
#: How long a spare process is idle before the next one may follow it at once.
_STEADY_SECONDS: Final = 60.0
_LONGEST_PAUSE_SECONDS: Final = 3600.0
#: How long Ray may take to start a process.
_START_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02
#: How many actors are begun, of which all but the last may have been given an idle process.
_MOST_TRIES: Final = 4

#: How Ray titles a worker process: any, one that does nothing, a broker's, and any of ours, with or without a call.
_RAY: Final = "ray::"
_IDLE: Final = "ray::IDLE"
_BROKER: Final = re.compile(r"ray::Broker\b")
_OURS: Final = re.compile(r"ray::(Broker|NameServer|Keeper|Scheduler|Coordinator|Producer)\b")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process of this node that belongs to the broker's job."""

    pid: int
    title: str


def is_wanted() -> bool:
    """Whether brokers keep a spare process, by this process's environment."""
    return os.environ.get(SPARE_PROCESS) != "0"


def keeps_spare(broker: int, workers: Iterable[Worker]) -> bool:
    """Whether of a node's brokers this process keeps the spare one: that with the lowest process id."""
    return broker == min((each.pid for each in workers if _BROKER.match(each.title)), default=broker)


def is_spare(pid: int | None, workers: Iterable[Worker]) -> bool:
    """Whether a process is there and does nothing; one that is still importing Ray has no title of Ray's."""
    return any(each.pid == pid and (each.title == _IDLE or not each.title.startswith(_RAY)) for each in workers)


def was_of_use(pid: int | None, workers: Iterable[Worker]) -> bool:
    """Whether an actor of ours is back in the process."""
    return any(each.pid == pid and _OURS.match(each.title) is not None for each in workers)


class Upkeep:
    """Decide when a spare process is made: at once, then after pauses that double up to an hour.

    One that was of use, or idle for 60 s, is replaced at once again. Where Ray ends them soon, or other tasks take
    them, they must not cost a process start every few seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made = self._not_before = clock()
        self._backoff = Backoff(first=_LOOK_SECONDS, factor=2.0, cap=_LONGEST_PAUSE_SECONDS)

    def is_due(self, is_idle: bool) -> bool:
        """Whether to make one now; `is_idle`: whether the last one is there, see `is_spare`."""
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
        """Make the next one without a pause."""
        self._backoff.reset()
        self._not_before = self._clock()


class _Spare:
    """An actor that Ray starts a process for, and that has come to it only if the process was there before."""

    def is_there(self) -> bool:
        """Answer."""
        return True


class SpareProcess:
    """Keep one idle worker process per node, job and runtime environment for brokers that die.

    It works on a daemon thread, and what goes wrong is one line of the log at level INFO. Thread-safe.
    """

    def __init__(self, broker: str, node_id: str) -> None:
        self._broker = broker
        self._node_id = node_id
        self._job = ray.get_runtime_context().get_job_id()
        self._stopping = threading.Event()
        self._spare: int | None = None

    def begin(self) -> None:
        """Make one soon, and look after it, unless the environment says not to."""
        if is_wanted():
            threading.Thread(target=self._keep, name=f"{self._broker}-spare", daemon=True).start()

    def stop(self) -> None:
        """Make no further one. The one that is there is Ray's to end."""
        self._stopping.set()

    def _keep(self) -> None:
        upkeep, pause = Upkeep(), _FIRST_SECONDS
        while not self._stopping.wait(pause):
            pause = _LOOK_SECONDS
            try:
                self._look(upkeep)
            except Exception as error:  # noqa: BLE001 - a broker works without it
                _log.info("%s has no spare process: %s: %s", self._broker, type(error).__name__, error)

    def _look(self, upkeep: Upkeep) -> None:
        workers = self._workers()
        if was_of_use(self._spare, workers):
            upkeep.forget_failures()
        if not is_spare(self._spare, workers):
            self._spare = None  # also if it will be idle again: having run a task, it is none for an actor
        if not keeps_spare(os.getpid(), workers) or not upkeep.is_due(self._spare is not None):
            return
        self._spare = self._make({each.pid for each in workers})
        if self._spare is None:
            _log.info("%s has no spare process: Ray started none", self._broker)

    def _make(self, before: set[int]) -> int | None:
        """Let Ray start a process for an actor, and take the actor back; its id, None where Ray started none."""
        here = NodeAffinitySchedulingStrategy(node_id=self._node_id, soft=False)
        kind: Any = ray.remote(_Spare)
        for _ in range(_MOST_TRIES):
            actor = kind.options(num_cpus=0, enable_task_events=False, scheduling_strategy=here).remote()
            try:
                if (pid := self._await_process(before, actor.is_there.remote())) is not None:
                    return pid
            finally:
                ray.kill(actor)
        return None

    def _await_process(self, before: set[int], answer: Any) -> int | None:
        """The process that was started; None once the actor answers from one that was there, or does not come."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if started := {each.pid for each in self._workers()} - before:
                return min(started)
            if ray.wait([answer], timeout=_POLL_SECONDS)[0]:
                break
        return None

    def _workers(self) -> list[Worker]:
        """The worker processes of this broker's job that its raylet has started."""
        found = []
        for process in psutil.Process(os.getppid()).children():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("RAY_JOB_ID") == self._job:
                    found.append(Worker(process.pid, "".join(process.cmdline()[:1])))
        return found
