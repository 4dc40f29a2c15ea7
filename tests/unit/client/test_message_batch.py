"""Test that the futures of a batch, made on demand, behave as concurrent.futures documents."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import threading
import weakref
from concurrent.futures import Future

import pytest

from raymq.actors.errors import NotStored, OutcomeUnknown
from raymq.actors.sending.send_plan import SendParameters
from raymq.client import MessageQueue, SendResult, SendStatus
from raymq.client.produce.message_batch import MessageBatch, PendingFields, PendingResult, PlainFields

pytestmark = pytest.mark.usefixtures("batch_code")

TERMS = SendParameters(3.0, 2)


def results(count: int) -> list[SendResult]:
    queue = MessageQueue("t", "a", 0)
    return [SendResult(SendStatus.SEND_OK, "id", str(number), queue, number) for number in range(count)]


@pytest.fixture
def batch() -> MessageBatch:
    return MessageBatch("t", TERMS)


def test_results_read_after_the_outcome_need_no_condition(batch: MessageBatch) -> None:
    deliveries = [PendingResult(batch, index) for index in range(3)]
    batch.finish(lambda: results(3))
    assert [delivery.result() for delivery in deliveries] == results(3)
    assert all(delivery.done() for delivery in deliveries)
    assert not any("_condition" in vars(delivery) for delivery in deliveries)


def test_results_are_made_once_on_first_access(batch: MessageBatch) -> None:
    calls = []
    batch.finish(lambda: calls.append(1) or results(2))  # type: ignore[func-returns-value]
    assert not calls
    assert PendingResult(batch, 0).result() is not PendingResult(batch, 1).result()
    assert len(calls) == 1


@pytest.mark.parametrize("finished_first", [True, False])
def test_pending_result_behaves_as_a_future(batch: MessageBatch, finished_first: bool) -> None:
    delivery = PendingResult(batch, 1)
    seen: list[Future[SendResult]] = []
    if finished_first:
        batch.finish(lambda: results(2))
    else:
        assert not delivery.done()
        assert delivery.running()
        with pytest.raises(TimeoutError):
            delivery.result(0)
    assert not delivery.cancel()
    delivery.add_done_callback(seen.append)
    batch.finish(lambda: results(2))
    assert seen == [delivery]
    assert delivery.result(0) == results(2)[1]
    assert delivery.exception() is None
    assert not delivery.cancelled()
    assert not delivery.running()
    assert isinstance(delivery, Future)


def test_pending_results_work_with_wait_and_as_completed(batch: MessageBatch) -> None:
    early, late = PendingResult(batch, 0), PendingResult(batch, 1)
    waiter = threading.Thread(target=concurrent.futures.wait, args=([early],))
    waiter.start()
    batch.finish(lambda: results(2))
    waiter.join(5)
    assert not waiter.is_alive()
    assert concurrent.futures.wait([early, late], timeout=0).not_done == set()
    assert set(concurrent.futures.as_completed([early, late], timeout=0)) == {early, late}


def test_pending_result_can_be_awaited(batch: MessageBatch) -> None:
    async def wait() -> SendResult:
        asyncio.get_running_loop().call_soon(batch.finish, lambda: results(1))
        return await asyncio.wrap_future(PendingResult(batch, 0))

    assert asyncio.run(wait()) == results(1)[0]


def test_each_message_has_its_own_outcome(batch: MessageBatch) -> None:
    waiting = [PendingResult(batch, index) for index in range(2)]
    seen: list[BaseException | None] = []
    for delivery in waiting:
        delivery.add_done_callback(lambda done: seen.append(done.exception()))
    error = NotStored("no")
    batch.finish(lambda: [results(1)[0], error])
    assert seen == [None, error]
    with pytest.raises(NotStored):
        PendingResult(batch, 1).result()


def test_message_without_an_outcome_raises_outcome_unknown(batch: MessageBatch) -> None:
    deliveries = [PendingResult(batch, index) for index in range(3)]
    seen: list[int] = []
    for delivery in deliveries[:2]:
        delivery.add_done_callback(lambda done: seen.append(done.index))  # type: ignore[attr-defined]
    batch.finish(lambda: results(1))
    assert seen == [0, 1]
    assert deliveries[0].result(0) == results(1)[0]
    for delivery in deliveries[1:]:
        with pytest.raises(OutcomeUnknown):
            delivery.result(0)


def test_error_in_making_outcomes_fails_all_results(batch: MessageBatch) -> None:
    waiting = [PendingResult(batch, index) for index in range(2)]
    seen: list[BaseException | None] = []
    for delivery in waiting:
        delivery.add_done_callback(lambda done: seen.append(done.exception()))
    batch.finish(lambda: [results(1)[5]])
    assert [type(error) for error in seen] == [OutcomeUnknown] * 2
    assert isinstance(PendingResult(batch, 1).exception(0), OutcomeUnknown)


def test_results_can_be_read_by_many_threads(batch: MessageBatch) -> None:
    deliveries = [PendingResult(batch, index) for index in range(200)]
    found: list[list[int]] = []

    def read() -> None:
        found.append([delivery.result(10).queue_offset for delivery in deliveries])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    batch.finish(lambda: results(200))
    for thread in threads:
        thread.join(10)
    assert found == [list(range(200))] * 4


def test_unknown_attribute_raises_attribute_error(batch: MessageBatch) -> None:
    with pytest.raises(AttributeError):
        _ = PendingResult(batch, 0).nothing  # type: ignore[attr-defined]


def test_reference_cycles_with_results_are_collected(batch: MessageBatch) -> None:
    looked_at, other = PendingResult(batch, 0), PendingResult(batch, 1)
    looked_at.add_done_callback(functools.partial(lambda *_: None, looked_at))  # a reference cycle
    assert gc.is_tracked(looked_at)
    assert gc.is_tracked(other) == (PendingFields is PlainFields)
    gone = weakref.ref(looked_at)
    batch.finish(lambda: results(2))
    del looked_at
    gc.collect()
    assert gone() is None
    assert other.result().unique_key == "1"
