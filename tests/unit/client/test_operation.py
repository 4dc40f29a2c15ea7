"""Test the state and progress of an Admin operation that runs, succeeds, fails or is cancelled."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from raymq.actors.errors import ElectionFailed, RayMQError, Timeout
from raymq.client import Operation


def new_operation() -> tuple[Operation[int], Future[int]]:
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()
    return Operation("election", future, lambda result: f"replica {result} is master"), future


def test_running_operation_has_its_state_and_can_be_awaited() -> None:
    made, future = new_operation()
    assert (made.state, made.progress) == ("running", "election")
    with pytest.raises(Timeout, match="it is still running"):
        made.wait(0.01)
    future.set_result(1)
    assert (made.state, made.progress, made.wait()) == ("done", "replica 1 is master", 1)


def test_failed_operation_raises_its_error() -> None:
    made, future = new_operation()
    future.set_exception(ElectionFailed("nobody is in sync"))
    assert (made.state, made.progress) == ("failed", "nobody is in sync")
    with pytest.raises(ElectionFailed):
        made.wait(1.0)


def test_cancelled_operation_has_its_state() -> None:
    future: Future[int] = Future()
    made = Operation("election", future, str)
    made.cancel()
    assert made.state == "cancelled"
    with pytest.raises(RayMQError, match="cancelled"):
        made.wait()
