"""Test a consumer's listener threads: each call runs once, and the number of threads is bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from raymq.client.listener_threads import ListenerThreads
from tests.polling import poll_until

Make = Callable[[int, Callable[[int], None]], ListenerThreads[int]]


@pytest.fixture
def make() -> Iterator[Make]:
    pools: list[ListenerThreads[int]] = []

    def make_pool(most: int, run: Callable[[int], None]) -> ListenerThreads[int]:
        pools.append(ListenerThreads(most, "calls", run))
        return pools[-1]

    yield make_pool
    for threads in pools:
        threads.close()
    poll_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("calls_")])


@pytest.mark.parametrize("most", [1, 3])
def test_blocking_calls_run_in_parallel_up_to_the_limit(make: Make, most: int) -> None:
    running: list[int] = []
    go_on = threading.Semaphore(0)

    def run(call: int) -> None:
        running.append(call)
        go_on.acquire()

    threads = make(most, run)
    for call in range(5):
        threads.submit(call)
    poll_until(lambda: len(running) == most)
    assert sorted(running) == list(range(most))
    go_on.release(5)
    poll_until(lambda: sorted(running) == list(range(5)))
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("calls_")]) == most


def test_every_call_runs_once_while_threads_start_and_end(make: Make) -> None:
    made: list[int] = []
    ended = threading.Semaphore(0)

    def run(call: int) -> None:
        made.append(call)
        ended.release()

    threads = make(4, run)
    waited_for = 0
    for call in range(20_000):
        threads.submit(call)
        if call % 7 == 0:
            while waited_for <= call:
                assert ended.acquire(timeout=10)
                waited_for += 1
    poll_until(lambda: len(made) == 20_000)
    assert sorted(made) == list(range(20_000))


def test_one_thread_runs_its_calls_in_order(make: Make) -> None:
    made: list[int] = []
    threads = make(1, made.append)
    for call in range(1_000):
        threads.submit(call)
    poll_until(lambda: len(made) == 1_000)
    assert made == list(range(1_000))


def test_sleeping_call_does_not_delay_later_calls(make: Make) -> None:
    made: list[int] = []
    go_on = threading.Event()

    def run(call: int) -> None:
        if call == 0:
            go_on.wait(10)
        made.append(call)

    threads = make(2, run)
    for call in range(100):
        threads.submit(call)
    poll_until(lambda: len(made) == 99)
    go_on.set()
    poll_until(lambda: made[-1] == 0)


def test_close_returns_calls_that_have_not_begun(make: Make) -> None:
    begun = threading.Event()
    go_on = threading.Event()
    made: list[int] = []

    def run(call: int) -> None:
        begun.set()
        go_on.wait(10)
        made.append(call)

    threads = make(1, run)
    for call in range(3):
        threads.submit(call)
    assert begun.wait(10)
    assert threads.close() == [1, 2]
    threads.submit(3)
    go_on.set()
    poll_until(lambda: made == [0])


@pytest.mark.parametrize("error", [ValueError(), SystemExit(1), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_call_error_ends_no_thread(error: BaseException) -> None:
    made: list[int] = []
    errors: list[BaseException] = []

    def run(call: int) -> None:
        made.append(call)
        raise error

    threads = ListenerThreads(1, "calls", run, errors.append)
    for call in range(50):
        threads.submit(call)
    poll_until(lambda: len(errors) == 50)
    assert made == list(range(50))
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("calls_")]) == 1
    threads.close()


def test_withdraw_returns_waiting_calls_in_order(make: Make) -> None:
    go_on = threading.Semaphore(0)
    begun: list[int] = []

    def run(call: int) -> None:
        begun.append(call)
        go_on.acquire()

    threads = make(1, run)
    for call in range(4):
        threads.submit(call)
    poll_until(lambda: begun)
    assert threads.withdraw() == [1, 2, 3]
    go_on.release()
    threads.submit(4)
    go_on.release()
    poll_until(lambda: begun == [0, 4])
