"""Something that goes on in the cluster while the program does something else."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Generic, TypeVar

from raymq.actors.errors import RayMQError, Timeout
from raymq.storage.errors import number_text

_T = TypeVar("_T")


class ToldSteps:
    """The steps of a change that goes on, in words. One writer, any readers."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def __call__(self, step: str) -> None:
        """Another step begins; what is said twice in a row is one."""
        if not self.steps or self.steps[-1] != step:
            self.steps.append(step)


class Operation(Generic[_T]):
    """A change that an administrator has asked for. Any thread.

    `state` is "running", "done", "failed" or "cancelled"; `progress` says in words how far it is.
    """

    def __init__(
        self,
        what: str,
        future: concurrent.futures.Future[_T],
        told: Callable[[_T], str],
        progress: ToldSteps | None = None,
    ) -> None:
        """`told`: the result in words. `progress`: where the steps are told that it goes through."""
        self._what = what
        self._future = future
        self._told = told
        self._progress = progress or ToldSteps()

    def __repr__(self) -> str:
        return f"<Operation {self._what}: {self.state}>"

    @property
    def state(self) -> str:
        """How it stands."""
        if not self._future.done():
            return "running"
        if self._future.cancelled():
            return "cancelled"
        return "done" if self._future.exception() is None else "failed"

    @property
    def progress(self) -> str:
        """How far it is, or what has become of it."""
        if self.state == "done":
            return self._told(self._future.result())
        if self.state == "failed":
            return str(self._future.exception())
        return next(iter(self.steps[-1:]), self._what)

    @property
    def steps(self) -> list[str]:
        """What it has done so far, in words, and what it does now; empty of what is one step."""
        return list(self._progress.steps)

    def wait(self, timeout: float | None = None) -> _T:
        """What came of it.

        Raises:
            Timeout: it goes on after `timeout` seconds. RayMQError: it failed, or was cancelled.
        """
        try:
            return self._future.result(timeout)
        except concurrent.futures.CancelledError:
            raise RayMQError(f"{self._what}: it was cancelled") from None
        except TimeoutError as error:
            if self._future.done():
                raise
            raise Timeout(self._what, f"it goes on after {number_text(timeout or 0.0, 3)} s") from error

    def cancel(self) -> None:
        """Wait for it no more. What the cluster was asked for already may be carried out all the same."""
        self._future.cancel()
