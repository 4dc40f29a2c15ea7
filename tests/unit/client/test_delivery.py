"""Test which thread runs a listener call, and when the loop handles finished calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.actors.supervisor import Supervisor
from raymq.client.members.tag_filter import TagFilter
from raymq.client.message import ReceivedMessage
from raymq.client.push.call_results import SendBackResult
from raymq.client.push.consume_message_service import ConsumeMessageService
from raymq.client.push.consumer_settings import ConsumerSettings
from raymq.client.push.failures import CallFailure
from raymq.client.push.listener import Answer, ConsumeResult, ListenerRunner
from raymq.client.push.listener_runs import ListenerLatency
from raymq.client.push.process_queue import ProcessQueue
from tests.polling import poll_until
from tests.received_messages import QUEUE, message

SECONDS = 5.0


class Bench:
    """A message service whose listener returns `answer`, each time after `end_a_call`."""

    def __init__(self, *, ordered: bool) -> None:
        self.begun: list[int] = []
        self.answer: Answer | BaseException = ConsumeResult.SUCCESS
        self.room: list[ProcessQueue] = []
        self.returned: list[tuple[int, int]] = []
        self._go_on = threading.Semaphore(0)
        self._ended = threading.Semaphore(0)
        settings = ConsumerSettings("g", {"t": TagFilter.parse("*")}, ordered=ordered, threads=1)
        self.delivery = ConsumeMessageService(
            settings,
            ListenerRunner(self._listen),
            Supervisor("consumer of g"),
            send_back=self._send_back,
            on_room=self.room.append,
        )
        self.delivery._makes_runs = False  # see test_listener_runs.py
        self.process = self.delivery.open(QUEUE, 0)
        run = self.delivery._threads._run

        def run_and_signal(call: object) -> None:
            run(call)  # type: ignore[arg-type]
            self._ended.release()

        self.delivery._threads._run = run_and_signal  # type: ignore[assignment]

    def _listen(self, messages: list[ReceivedMessage]) -> Answer:
        self.begun += [each.queue_offset for each in messages]
        assert self._go_on.acquire(timeout=SECONDS)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    async def _send_back(self, failed: ReceivedMessage, failure: CallFailure) -> SendBackResult:
        self.returned.append((failed.queue_offset, failure.level))
        return SendBackResult()

    def add(self, *offsets: int) -> None:
        self.delivery.add(self.process, [message(offset) for offset in offsets], [10] * len(offsets))

    def end_a_call(self) -> None:
        """Let one call return, and wait until its thread has finished."""
        self._go_on.release()
        assert self._ended.acquire(timeout=SECONDS)

    @property
    def finished(self) -> bool:
        return self.process.in_flight == 0


def run(scenario: Callable[[Bench], Awaitable[None]], *, ordered: bool = False) -> None:
    async def whole() -> None:
        bench = Bench(ordered=ordered)
        await scenario(bench)
        await bench.delivery.stop(SECONDS)

    asyncio.run(whole())


async def run_loop_callbacks() -> None:
    """Let the loop run the callbacks that threads have scheduled."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("ordered", [False, True])
def test_success_is_settled_with_the_next_work(ordered: bool) -> None:
    async def scenario(bench: Bench) -> None:
        bench.add(0)
        bench.end_a_call()
        await run_loop_callbacks()
        assert not bench.finished
        bench.delivery.settle()
        assert (bench.finished, bench.process.commit_offset) == (True, 1)
        bench.add(1)
        bench.end_a_call()
        bench.add(2)
        assert bench.process.in_flight == 1, "an arrival looks at it"
        bench.end_a_call()

    run(scenario, ordered=ordered)


@pytest.mark.parametrize("answer", [ConsumeResult.RECONSUME_LATER, None, ValueError(), SystemExit()])
def test_failed_message_is_sent_back_at_once(answer: Answer | BaseException) -> None:
    async def scenario(bench: Bench) -> None:
        bench.answer = answer
        bench.add(0)
        bench.end_a_call()
        await run_loop_callbacks()
        assert (bench.returned, bench.finished) == ([(0, 0)], True)

    run(scenario)


def test_failure_is_logged_before_the_broker_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log entry waits only a moment for the broker's answer."""
    monkeypatch.setattr("raymq.client.push.call_results._ANSWER_SECONDS", 0.0)

    async def scenario(bench: Bench) -> None:
        is_back = asyncio.Event()

        async def send_back(*_: object) -> SendBackResult:
            await is_back.wait()
            return SendBackResult()

        bench.delivery._results._send_back = send_back
        bench.answer = ValueError("no such account")
        bench.add(0)
        bench.end_a_call()
        await asyncio.to_thread(poll_until, lambda: "it comes again when b has taken it back" in caplog.text)
        is_back.set()

    run(scenario)


@pytest.mark.parametrize("ordered", [False, True])
def test_calls_start_when_a_refused_thread_can_be_started(ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused thread is reported, and its call starts later."""
    start, refused = threading.Thread.start, list[str]()

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("raymq-g_") and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    async def scenario(bench: Bench) -> None:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        bench.add(0)
        bench.delivery.expire_calls()
        assert (bench.begun, len(refused)) == ([], 2)
        bench.delivery.expire_calls()
        bench.end_a_call()
        bench.delivery.settle()
        assert (bench.begun, bench.finished) == ([0], True)
        assert "can't start new thread" in bench.delivery._supervisor.failures[0].error

    run(scenario, ordered=ordered)


def test_next_ordered_call_begins_at_once() -> None:
    async def scenario(bench: Bench) -> None:
        bench.add(0, 1)
        bench.end_a_call()
        await run_loop_callbacks()
        assert bench.process.in_flight == 1
        bench.end_a_call()
        assert bench.begun == [0, 1]

    run(scenario, ordered=True)


def test_waiting_messages_begin_when_a_thread_is_free() -> None:
    async def scenario(bench: Bench) -> None:
        bench.add(*range(5))
        assert bench.process.ready == 3, "two are handed over to one thread"
        bench.end_a_call()
        await run_loop_callbacks()
        assert bench.process.ready == 2
        for _ in range(4):
            bench.end_a_call()
            await run_loop_callbacks()
        assert bench.begun == [0, 1, 2, 3, 4]

    run(scenario)


def test_finished_call_reports_room_at_once() -> None:
    async def scenario(bench: Bench) -> None:
        bench.add(0)
        bench.process.waits_for_room = True
        bench.delivery.settle()
        assert bench.room == []
        bench.end_a_call()
        await run_loop_callbacks()
        assert (bench.room, bench.process.waits_for_room) == ([bench.process], False)

    run(scenario)


def test_dropped_queue_is_idle_after_its_running_call() -> None:
    async def scenario(bench: Bench) -> None:
        bench.add(0)
        bench.delivery.drop(QUEUE)
        idle = asyncio.ensure_future(bench.delivery.idle(QUEUE))
        await run_loop_callbacks()
        assert not idle.done()
        bench.end_a_call()
        await asyncio.wait_for(idle, SECONDS)
        assert bench.process.commit_offset == 1, "what it did counts"

    run(scenario, ordered=True)


def test_stop_waits_for_the_running_call_and_begins_no_other() -> None:
    async def scenario(bench: Bench) -> None:
        bench.add(0, 1)
        stopping = asyncio.ensure_future(bench.delivery.stop(SECONDS))
        await run_loop_callbacks()
        assert not stopping.done()
        bench.end_a_call()
        await asyncio.wait_for(stopping, SECONDS)
        assert (bench.begun, bench.process.commit_offset) == ([0], 1)

    run(scenario)


class FakeGate:
    """A gate that is shut for the queues in `shut`."""

    def __init__(self) -> None:
        self.shut: set[MessageQueue] = set()
        self.wanted: list[MessageQueue] = []

    def may_begin(self, queue: MessageQueue) -> bool:
        return queue not in self.shut

    def want(self, queue: MessageQueue) -> None:
        self.wanted.append(queue)


@pytest.mark.parametrize("shut_when", ["before it arrives", "when it is handed over to a thread"])
def test_call_without_a_valid_lock_waits_and_runs_once(shut_when: str) -> None:
    """Fault 13.19: the lock is checked right before the call, not only at the handover."""

    async def scenario(bench: Bench) -> None:
        gate = bench.delivery._caller.gate = FakeGate()
        other = MessageQueue("t", "b", 1)
        process = bench.delivery.open(other, 0)
        bench.add(0)  # occupies the only thread
        if shut_when == "before it arrives":
            gate.shut.add(other)
        bench.delivery.add(process, [replace(message(5), queue=other)], [10])
        gate.shut.add(other)
        bench.end_a_call()
        await run_loop_callbacks()
        if shut_when != "before it arrives":
            await asyncio.to_thread(bench._ended.acquire, timeout=SECONDS)
            await run_loop_callbacks()
        assert (bench.begun, process.ready, gate.wanted) == ([0], 1, [other])
        gate.shut.clear()
        bench.delivery.gate_opened({other})
        bench.end_a_call()
        bench.delivery.settle()
        assert (bench.begun, process.in_flight) == ([0, 5], 0)

    run(scenario, ordered=True)


# -- on the loop's thread ---------------------------------------------------------------------------------------


class LoopThreadBench(Bench):
    """A bench that runs the calls of the loop's thread with `run_loop_thread_call`."""

    def __init__(self, *, ordered: bool) -> None:
        super().__init__(ordered=ordered)
        self.loop_thread_calls: list[Callable[[], None]] = []
        self.refuses = False
        self.delivery._run_aside = self._queue_loop_thread_call

    def _queue_loop_thread_call(self, call: Callable[[], None]) -> bool:
        if not self.refuses:
            self.loop_thread_calls.append(call)
        return not self.refuses

    def add_one(self, offset: int) -> None:
        self.add(offset)

    def run_loop_thread_call(self) -> None:
        self._go_on.release()
        self.loop_thread_calls.pop()()


def run_with_loop_thread_calls(
    scenario: Callable[[LoopThreadBench], Awaitable[None]], *, ordered: bool = False
) -> None:
    async def whole() -> None:
        bench = LoopThreadBench(ordered=ordered)
        await scenario(bench)
        await bench.delivery.stop(SECONDS)

    asyncio.run(whole())


def test_quick_listener_gets_single_messages_on_the_loop_thread() -> None:
    async def scenario(bench: LoopThreadBench) -> None:
        bench.add_one(0)
        assert not bench.loop_thread_calls, "nobody knows yet that it is quick"
        bench.end_a_call()
        bench.delivery.latency = ListenerLatency(lambda: 0.0)
        for offset in range(1, 60):
            bench.delivery.latency.took(0.0)
            bench.add_one(offset)
            assert len(bench.loop_thread_calls) == 1
            bench.run_loop_thread_call()
        assert bench.begun == [*range(60)]
        assert bench.process.in_flight < 20, "what has ended is looked at now and then"
        bench.delivery.settle()
        assert (bench.finished, bench.process.commit_offset) == (True, 60)

    run_with_loop_thread_calls(scenario)


def test_slow_or_concurrent_calls_run_on_listener_threads() -> None:
    async def scenario(bench: LoopThreadBench) -> None:
        bench.delivery.latency.took(1.0)
        bench.add_one(0)
        bench.end_a_call()
        bench.delivery.latency = ListenerLatency(lambda: 0.0)
        bench.delivery.latency.took(0.0)
        bench.add(1, 2)
        bench.end_a_call()
        bench.delivery.latency.took(0.0)
        bench.add_one(3)
        assert not bench.loop_thread_calls, "another call runs"
        bench.end_a_call()
        bench.end_a_call()
        bench.refuses = True
        bench.delivery.latency.took(0.0)
        bench.add_one(4)
        bench.end_a_call()
        assert bench.begun == [0, 1, 2, 3, 4]

    run_with_loop_thread_calls(scenario)


def test_loop_thread_call_counts_towards_the_thread_limit() -> None:
    async def scenario(bench: LoopThreadBench) -> None:
        bench.delivery.latency.took(0.0)
        bench.add_one(0)
        bench.add(1, 2)
        assert (len(bench.loop_thread_calls), bench.process.ready) == (1, 2), "of one thread"
        bench.run_loop_thread_call()
        await run_loop_callbacks()
        bench.end_a_call()
        bench.end_a_call()
        assert bench.begun == [0, 1, 2]

    run_with_loop_thread_calls(scenario)


def test_failed_loop_thread_call_is_sent_back() -> None:
    async def scenario(bench: LoopThreadBench) -> None:
        bench.answer = ValueError()
        bench.delivery.latency.took(0.0)
        bench.add_one(0)
        bench.run_loop_thread_call()
        await run_loop_callbacks()
        assert (bench.returned, bench.finished) == ([(0, 0)], True)

    run_with_loop_thread_calls(scenario)


def test_paused_or_dropped_queue_gets_no_loop_thread_call() -> None:
    async def scenario(bench: LoopThreadBench) -> None:
        bench.delivery.latency.took(0.0)
        bench.delivery.pause()
        bench.add_one(0)
        assert (bench.loop_thread_calls, bench.process.ready) == ([], 1)
        bench.delivery.resume()
        bench.end_a_call()
        bench.delivery.settle()
        bench.delivery.latency.took(0.0)
        bench.delivery.drop(QUEUE)

    run_with_loop_thread_calls(scenario)


def test_ordered_queue_gets_no_loop_thread_call() -> None:
    async def scenario(bench: LoopThreadBench) -> None:
        bench.delivery.latency.took(0.0)
        bench.add_one(0)
        assert not bench.loop_thread_calls
        bench.end_a_call()
        assert bench.begun == [0]

    run_with_loop_thread_calls(scenario, ordered=True)


def test_stop_waits_for_a_loop_thread_call() -> None:
    async def scenario(bench: LoopThreadBench) -> None:
        bench.delivery.latency.took(0.0)
        bench.add_one(0)
        stopping = asyncio.ensure_future(bench.delivery.stop(SECONDS))
        await run_loop_callbacks()
        assert not stopping.done()
        bench.run_loop_thread_call()
        await asyncio.wait_for(stopping, SECONDS)
        assert (bench.begun, bench.process.in_flight) == ([], 1), "what was not begun comes again"

    run_with_loop_thread_calls(scenario)


def test_call_ends_despite_errors_outside_the_listener() -> None:
    """An internal error may follow the listener's answer, on the loop's thread or a listener's."""

    async def scenario(bench: Bench) -> None:
        def fails(*_: float) -> None:
            raise OverflowError("around the call")

        bench.delivery.latency.took = fails  # type: ignore[method-assign]
        for offset in range(3):
            bench.add(offset)
            bench.end_a_call()
        bench.delivery.settle()
        assert bench.finished
        assert bench.process.commit_offset == 3
        (failure,) = bench.delivery._supervisor.failures
        assert (failure.work, failure.count) == ("listener call", 3)

    run(scenario)


def test_thousands_of_slow_calls_overflow_no_wait() -> None:
    """An unbounded exponential wait overflows after about a thousand slow calls."""

    async def scenario(bench: Bench) -> None:
        bench.delivery._caller._clock = iter(range(10**6)).__next__  # type: ignore[assignment] # each call takes a second
        for offset in range(3_000):
            bench.add(offset)
            bench.end_a_call()
        bench.delivery.settle()
        assert bench.finished
        assert bench.delivery._supervisor.failures == []

    run(scenario)


@pytest.mark.parametrize("ordered", [False, True])
def test_call_with_an_undecodable_message_is_done_or_sent_back(ordered: bool) -> None:
    async def scenario(bench: Bench) -> None:
        order = bench.delivery._orders[QUEUE]

        def fails(*_: object) -> None:
            raise ValueError("a message that cannot be decoded")

        kind = type(order)
        done, kind.done = kind.done, fails  # type: ignore[method-assign]
        try:
            bench.add(0)
            bench.end_a_call()
            bench.delivery.settle()
            bench.answer = ConsumeResult.RECONSUME_LATER
            bench.add(1)
            bench.end_a_call()
            bench.delivery.settle()
            await run_loop_callbacks()
        finally:
            kind.done = done  # type: ignore[method-assign]
        assert (bench.returned, bench.finished) == ([(1, 0)], True)

    run(scenario, ordered=ordered)


def test_pause_stops_calls_already_handed_to_threads() -> None:
    async def scenario(bench: Bench) -> None:
        bench.add(0, 1, 2, 3)
        poll_until(lambda: bench.begun)
        bench.delivery.pause()
        bench.end_a_call()
        await run_loop_callbacks()
        assert bench.begun == [0]
        bench.delivery.resume()
        for _ in range(3):
            bench.end_a_call()
            await run_loop_callbacks()
        assert bench.begun == [0, 1, 2, 3]

    run(scenario)
