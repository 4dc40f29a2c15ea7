"""The scheduler actor: triggers the delivery of delayed and retried messages.

The scheduler needs no persistent state, because the brokers store the progress. It asks every broker to deliver its due
messages, with one call for all levels, and schedules the next call by the broker's next due time. A broker that hangs
does not delay the others: its call just stays pending. New and removed brokers are found by their actor names.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import ray

from raymq.actors import actor_calls
from raymq.actors.errors import RayMQError
from raymq.actors.poll_schedule import IDLE_SECONDS, PollSchedule
from raymq.actors.protocol import DueReport, SchedulerSpec
from raymq.storage.clock import boottime

#: A call that takes longer is abandoned. Its outcome does not matter, because the next call does the same.
_CALL_SECONDS = 10.0
#: Seconds between two checks of which brokers exist. A new broker delivers by itself until then.
_LOOK_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Scheduler:
    """An actor with a polling thread that runs from construction until `stop`."""

    def __init__(self, spec: SchedulerSpec) -> None:
        self._spec = spec
        self._paces = {broker: PollSchedule(boottime) for broker in spec.brokers}
        self._look_at = boottime() + _LOOK_SECONDS
        self._under_way: dict[Any, tuple[str, float]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        """Return the name in Ray's dashboard and before its lines in Ray's logs."""
        return f"Scheduler({self._spec.namespace})"

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def stop(self) -> None:
        """End the thread; the caller kills the actor next."""
        self._stopped.set()
        self._thread.join(_CALL_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._turn()
            except Exception:  # noqa: BLE001 - the clock must not stop because one turn failed
                _log.exception("a turn of the scheduler failed")
                self._stopped.wait(1.0)

    def _turn(self) -> None:
        if boottime() >= self._look_at:
            self._look_at = boottime() + _LOOK_SECONDS
            there = actor_calls.broker_names(self._spec.namespace)
            self._paces = {broker: self._paces.get(broker) or PollSchedule(boottime) for broker in there}
        busy = {broker for broker, _ in self._under_way.values()}
        for broker, pace in self._paces.items():
            if broker not in busy and pace.wait() <= 0:
                self._request(broker)
        idle = [pace.wait() for broker, pace in self._paces.items() if broker not in busy]
        wait = max(0.001, min([IDLE_SECONDS, *idle]))
        if not self._under_way:
            self._stopped.wait(wait)
            return
        ready, _ = ray.wait(list(self._under_way), num_returns=1, timeout=wait)
        for ref in ready:
            broker, _ = self._under_way.pop(ref)
            self._take(broker, ref)
        now = boottime()
        for ref, (broker, began) in list(self._under_way.items()):
            if now - began > _CALL_SECONDS:
                del self._under_way[ref]
                self._failed(broker)

    def _request(self, broker: str) -> None:
        try:
            handle = actor_calls.find(broker, self._spec.namespace)
            self._under_way[handle.deliver_due.remote(os.getpid())] = (broker, boottime())
        except RayMQError as error:
            _log.warning("%s", error)
            self._failed(broker)

    def _take(self, broker: str, ref: Any) -> None:
        try:
            report: DueReport = actor_calls.result(broker, ref, 0)
        except RayMQError as error:
            _log.warning("%s: %s", broker, error)
            self._failed(broker)
        else:
            if broker in self._paces:
                self._paces[broker].answered(report)

    def _failed(self, broker: str) -> None:
        if broker in self._paces:
            self._paces[broker].failed()
