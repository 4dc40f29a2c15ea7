"""Test that send callbacks run even if no thread can be started."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from raymq.client.callback_executor import CallbackExecutor, CallbackFuture


def test_close_runs_callbacks_when_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on no thread can start at the end of a program."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError(f"can't start {thread.name}")

    called: list[int] = []
    callbacks = CallbackExecutor()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    future: CallbackFuture[int] = CallbackFuture(callbacks)

    def call(done: Future[int]) -> None:
        called.append(done.result())

    future.add_done_callback(call)
    future.set_result(7)
    assert called == []
    callbacks.close(5.0)
    assert called == [7]


def test_callback_thread_start_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []
    start = threading.Thread.start

    def refuse_once(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    callbacks, called = CallbackExecutor(), list[Future[int]]()
    futures: list[Future[int]] = [Future(), Future()]
    for future in futures:
        callbacks.run(called.append, future)
    callbacks.close(5.0)
    assert (called, len(refused)) == (futures, 1)
