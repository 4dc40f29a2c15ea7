"""Start a service inside an actor's process, and retry until it is up."""

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

#: How long `cluster.start` waits for the directory's lock and the port of a former process, which may be ending.
PATIENCE_SECONDS = 5.0
#: The longest pause before a failed start is tried again.
LONGEST_PAUSE_SECONDS = 5.0

_log = logging.getLogger(__name__)


def raise_file_limit() -> None:
    """Raise this process's limit of open files to the maximum: every connection is a file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _NoPandas(MetaPathFinder):
    """An import hook that reports pandas as missing."""

    def find_spec(self, fullname: str, *_: Any) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is disabled in this process", name=fullname)


def block_pandas_import() -> None:
    """Keep this process from importing pandas.

    pyarrow imports pandas with its first array, if it is installed. A broker does not use it, and the import takes a
    third of a restart's time. If pandas was imported before, it stays.
    """
    sys.meta_path.insert(0, _NoPandas())


class Stoppable(Protocol):
    """A service that can be stopped."""

    async def stop(self) -> None:
        """Stop the service cleanly."""


_Service = TypeVar("_Service", bound=Stoppable)


class HostedService(Generic[_Service]):
    """A service that is started outside its actor's constructor, and retried until it is up.

    Ray never restarts an actor whose constructor raises, whatever `max_restarts` is. The causes are often
    temporary: a process that still holds the directory's lock, a port in use for a moment, a certificate that is just
    being replaced, a disk that is not mounted. So the constructor only begins the start, and `get` and `wait` raise the
    cause of a failure.

    Thread-safe.
    """

    def __init__(self, name: str, loop: EventLoopThread, start: Callable[[], Coroutine[Any, Any, _Service]]) -> None:
        """Begin to start the service on a new thread.

        `start` is run on `loop`. Its errors are logged, and raised by `get` and `wait`.
        """
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
        """Return the service; raise the error that keeps it from starting.

        Raise BrokerUnavailable if there was no error so far.
        """
        service = self._service
        if service is None:
            trouble = self._trouble
            raise BrokerUnavailable(self._name, "still starting") if trouble is None else trouble[0]
        return service

    def wait(self, seconds: float, patience: float) -> _Service:
        """Wait until the service is up, and return it.

        Args:
            seconds: the longest wait, which includes the recovery of a store that was killed.
            patience: for how many seconds a failure to start may last.

        Raises:
            RayMQError: the failure to start. Timeout: the service is not up after `seconds`.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._service is None:
                now = time.monotonic()
                if self._trouble is not None and (self._stopping.is_set() or now - self._trouble[1] >= patience):
                    raise self._trouble[0]
                if self._stopping.is_set() and not self._thread.is_alive():
                    raise BrokerUnavailable(self._name, "stopped, but its process has not ended yet")
                if now >= deadline:
                    raise Timeout(self._name, f"not started within {seconds:.0f} s")
                until = deadline if self._trouble is None else min(deadline, self._trouble[1] + patience)
                self._changed.wait(max(0.001, until - now))
            return self._service

    @property
    def is_stopped(self) -> bool:
        """Return True if `stop` was called; only another process starts the service again."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """End the retries, wait for a start in progress, and stop the service."""
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
            except BaseException as error:  # noqa: BLE001 - any error is reported and the start retried, also SystemExit
                _log.warning("%s does not start: %s: %s", self._name, type(error).__name__, error)
                self._notify(_as_ours(self._name, error))
                self._stopping.wait(backoff.next_delay())
                continue
            with self._changed:
                self._service = service
                self._trouble = None
                self._changed.notify_all()
            return

    def _notify(self, error: RayMQError) -> None:
        with self._changed:
            since = time.monotonic() if self._trouble is None else self._trouble[1]
            self._trouble = error, since
            self._changed.notify_all()


def _as_ours(name: str, error: BaseException) -> RayMQError:
    """Convert an error to a typed one that can cross processes."""
    if isinstance(error, RayMQError):
        return error
    reason = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    return BrokerUnavailable(name, f"does not start: {reason}")
