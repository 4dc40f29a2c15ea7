"""Track a change that runs in the cluster in the background."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Generic, TypeVar

from raymq.actors.errors import RayMQError, Timeout
from raymq.storage.errors import number_text

_T = TypeVar("_T")


class StepLog:
    """The steps of a running change, in words. One writer, any number of readers."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def __call__(self, step: str) -> None:
        """Append a step, unless it equals the previous one."""
        if not self.steps or self.steps[-1] != step:
            self.steps.append(step)


class Operation(Generic[_T]):
    """A change that an administrator requested and that runs in the background.

    It may be used from any thread. `state` is "running", "done", "failed" or "cancelled"; `progress` describes the
    current step or the outcome.
    """

    def __init__(
        self,
        what: str,
        future: concurrent.futures.Future[_T],
        describe: Callable[[_T], str],
        progress: StepLog | None = None,
    ) -> None:
        """Create the operation of a future.

        Args:
            what: its name in messages.
            future: yields the result.
            describe: returns the result in words.
            progress: collects the steps of the change.
        """
        self._what = what
        self._future = future
        self._told = describe
        self._progress = progress or StepLog()

    def __repr__(self) -> str:
        return f"<Operation {self._what}: {self.state}>"

    @property
    def state(self) -> str:
        """Return "running", "done", "failed" or "cancelled"."""
        if not self._future.done():
            return "running"
        if self._future.cancelled():
            return "cancelled"
        return "done" if self._future.exception() is None else "failed"

    @property
    def progress(self) -> str:
        """Return the current step, or the outcome once the change has ended, in words."""
        if self.state == "done":
            return self._told(self._future.result())
        if self.state == "failed":
            return str(self._future.exception())
        return next(iter(self.steps[-1:]), self._what)

    @property
    def steps(self) -> list[str]:
        """Return the steps so far, the current one last; empty for a one-step change."""
        return list(self._progress.steps)

    def wait(self, timeout: float | None = None) -> _T:
        """Wait for the end of the change and return its result.

        Raises:
            Timeout: the change has not ended after `timeout` seconds.
            RayMQError: the change failed, or was cancelled.
        """
        try:
            return self._future.result(timeout)
        except concurrent.futures.CancelledError:
            raise RayMQError(f"{self._what}: it was cancelled") from None
        except TimeoutError as error:
            if self._future.done():
                raise
            raise Timeout(self._what, f"it is still running after {number_text(timeout or 0.0, 3)} s") from error

    def cancel(self) -> None:
        """Cancel the change.

        The cluster may still carry out requests that were sent before.
        """
        self._future.cancel()
