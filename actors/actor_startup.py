"""Bringing a service up inside an actor's process, whatever is in its way for a while."""

from __future__ import annotations

import contextlib
import logging
import resource
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from importlib.abc import MetaPathFinder
from typing import Any, Generic, Protocol, TypeVar

from raymq.actors.backoff import Backoff
from raymq.actors.errors import BrokerUnavailable, RayMQError, Timeout
from raymq.actors.event_loop import EventLoopThread

#: How long `cluster.start` waits for the directory's lock and the port of a process before, which may be ending.
PATIENCE_SECONDS = 5.0
#: A service that does not start is tried again after this at the latest.
LONGEST_PAUSE_SECONDS = 5.0

_log = logging.getLogger(__name__)


def allow_many_files() -> None:
    """Raise this process's limit of open files to the highest that it may: every connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _NoPandas(MetaPathFinder):
    """Says of pandas that it is not to be had."""

    def find_spec(self, fullname: str, *_: Any) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("left out here", name=fullname)


def leave_out_pandas() -> None:
    """Keep this process from importing pandas, as pyarrow does with the first array that it makes, where it finds it.

    A broker has no use for it, and it costs a third of a restart's time. Where it was imported before, it stays.
    """
    sys.meta_path.insert(0, _NoPandas())


class Stoppable(Protocol):
    """What is brought up: it can be stopped."""

    async def stop(self) -> None:
        """End it cleanly."""


_Service = TypeVar("_Service", bound=Stoppable)


class Hosted(Generic[_Service]):
    """A service of an actor, brought up beside the actor's constructor, and tried again until it is up.

    Ray calls an actor whose constructor raises dead for good, whatever `max_restarts` says. What is in the way of a
    service often goes: a process that still holds the directory's lock, a port that somebody took for a moment, a
    certificate that is just being replaced, a disk that is away. So the constructor only begins, and whoever asks for
    the service is told what is in the way.

    Thread-safe.
    """

    def __init__(self, name: str, loop: EventLoopThread, start: Callable[[], Coroutine[Any, Any, _Service]]) -> None:
        """`start` is run on `loop`; what it raises is logged, and told by `get` and `wait`."""
        self._name = name
        self._loop = loop
        self._start = start
        self._changed = threading.Condition()
        self._service: _Service | None = None
        self._trouble: tuple[RayMQError, float] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._bring_up, name=f"{name}-start", daemon=True)
        self._thread.start()

    def get(self) -> _Service:
        """The service. Raises what keeps it from being up, BrokerUnavailable if nothing has gone wrong so far."""
        service = self._service
        if service is None:
            trouble = self._trouble
            raise BrokerUnavailable(self._name, "it is starting") if trouble is None else trouble[0]
        return service

    def wait(self, seconds: float, patience: float) -> _Service:
        """The service, as soon as it is up.

        Args:
            seconds: how long to wait at most, since a store that was killed is recovered first.
            patience: how long something may stand in the way.

        Raises:
            RayMQError: what stands in the way. Timeout: it has not come up in `seconds`.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._service is None:
                now = time.monotonic()
                if self._trouble is not None and (self._stopping.is_set() or now - self._trouble[1] >= patience):
                    raise self._trouble[0]
                if self._stopping.is_set() and not self._thread.is_alive():
                    raise BrokerUnavailable(self._name, "it was stopped, and its process is there yet")
                if now >= deadline:
                    raise Timeout(self._name, f"it is not up after {seconds:.0f} s")
                until = deadline if self._trouble is None else min(deadline, self._trouble[1] + patience)
                self._changed.wait(max(0.001, until - now))
            return self._service

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called: only another process brings the service up again."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Try no more, and stop the service if it is up; a start that is under way is waited for."""
        self._stopping.set()
        self._thread.join()
        with self._changed:
            self._changed.notify_all()
        service, self._service = self._service, None
        try:
            if service is not None:
                self._loop.run(service.stop())
        finally:
            self._loop.stop()

    def _bring_up(self) -> None:
        backoff = Backoff(first=0.1, cap=LONGEST_PAUSE_SECONDS)
        while not self._stopping.is_set():
            try:
                service = self._loop.run(self._start())
            except BaseException as error:  # noqa: BLE001 - whatever it is, SystemExit too, it is told, and tried again
                _log.warning("%s does not start: %s: %s", self._name, type(error).__name__, error)
                self._tell(_as_ours(self._name, error))
                self._stopping.wait(backoff.next_delay())
                continue
            with self._changed:
                self._service = service
                self._trouble = None
                self._changed.notify_all()
            return

    def _tell(self, error: RayMQError) -> None:
        with self._changed:
            since = time.monotonic() if self._trouble is None else self._trouble[1]
            self._trouble = error, since
            self._changed.notify_all()


def _as_ours(name: str, error: BaseException) -> RayMQError:
    """What crosses processes as a typed error."""
    if isinstance(error, RayMQError):
        return error
    reason = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    return BrokerUnavailable(name, f"it does not start: {reason}")
