"""Callbacks of sends are run also where there is no thread for them any more, as at the end of a program."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from raymq.client.callback_executor import CallbackExecutor, CallbackFuture


def test_what_found_no_thread_is_run_by_who_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on none can be started once a program ends, when the last sends are answered."""

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


def test_a_thread_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
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
