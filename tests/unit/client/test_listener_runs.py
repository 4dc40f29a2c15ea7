"""Test the runs in which quick listener calls are handed to a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from raymq.actors.supervisor import Supervisor
from raymq.client.members.tag_filter import TagFilter
from raymq.client.message import ReceivedMessage
from raymq.client.push.call_results import SendBackResult
from raymq.client.push.consume_message_service import ConsumeMessageService
from raymq.client.push.consumer_settings import ConsumerSettings
from raymq.client.push.failures import CallFailure
from raymq.client.push.listener import Answer, ConsumeResult, ListenerRunner, Retry
from raymq.client.push.listener_runs import CALLS_PER_RUN, ListenerLatency
from tests.received_messages import QUEUE, message

SECONDS = 10.0
SETTINGS = ConsumerSettings("g", {"t": TagFilter.parse("*")}, threads=4)


class Bench:
    """A service whose listener is quick, except for the messages of `slow`, whose calls wait for `go_on`."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self.calls: list[list[int]] = []
        self.threads: dict[int, int] = {}
        self.returned: list[tuple[int, int]] = []
        self.slow: set[int] = set()
        self.failing: set[int] = set()
        self.go_on = threading.Event()
        self.delivery = ConsumeMessageService(
            settings,
            ListenerRunner(self._listen),
            Supervisor("consumer of g"),
            send_back=self._send_back,
            on_room=lambda _: None,
        )
        self.process = self.delivery.open(QUEUE, 0)
        self.runs = 0
        submit = self.delivery._threads.submit

        def count_and_submit(call: object) -> None:
            self.runs += 1
            submit(call)  # type: ignore[arg-type]

        self.delivery._threads.submit = count_and_submit  # type: ignore[assignment]

    def _listen(self, messages: list[ReceivedMessage]) -> Answer:
        offsets = [each.queue_offset for each in messages]
        self.calls.append(offsets)
        self.threads |= dict.fromkeys(offsets, threading.get_ident())
        if self.slow.intersection(offsets):
            assert self.go_on.wait(SECONDS)
        return [Retry() if offset in self.failing else ConsumeResult.SUCCESS for offset in offsets]

    async def _send_back(self, failed: ReceivedMessage, failure: CallFailure) -> SendBackResult:
        self.returned.append((failed.queue_offset, failure.level))
        return SendBackResult()

    def add(self, offsets: range) -> None:
        self.delivery.add(self.process, [message(offset) for offset in offsets], [10] * len(offsets))

    async def until(self, in_flight: int) -> None:
        """Wait until so many messages are left in flight."""
        deadline = asyncio.get_running_loop().time() + SECONDS
        while self.process.in_flight > in_flight:
            assert asyncio.get_running_loop().time() < deadline, self.process.in_flight
            self.delivery.settle()
            await asyncio.sleep(0.001)

    async def until_called(self, offset: int) -> None:
        """Wait until the listener has got a message."""
        deadline = asyncio.get_running_loop().time() + SECONDS
        while offset not in self.called:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.001)

    @property
    def called(self) -> list[int]:
        return [offset for offsets in self.calls for offset in offsets]


@asynccontextmanager
async def quick_bench(settings: ConsumerSettings = SETTINGS) -> AsyncIterator[Bench]:
    """Yield a bench whose listener has made some quick calls, for offsets below 100."""
    bench = Bench(settings)
    bench.add(range(100))
    await bench.until(0)
    for _ in range(32):  # whatever the machine did meanwhile
        bench.delivery.latency.took(1e-6)
    bench.delivery.latency._not_before = 0.0
    bench.runs = 0
    bench.calls.clear()
    yield bench
    bench.go_on.set()
    await bench.delivery.stop(SECONDS)


def test_quick_calls_are_handed_over_in_runs() -> None:
    async def scenario() -> None:
        async with quick_bench() as bench:
            bench.add(range(100, 1_100))
            await bench.until(0)
            assert sorted(bench.called) == list(range(100, 1_100))
            assert all(len(offsets) == 1 for offsets in bench.calls)
            assert bench.runs < 500
            assert bench.process.commit_offset == 1_100

    asyncio.run(scenario())


def test_run_keeps_the_listeners_batch_size() -> None:
    async def scenario() -> None:
        async with quick_bench(replace(SETTINGS, batch_size=7)) as bench:
            bench.add(range(100, 800))
            await bench.until(0)
            assert sorted(bench.called) == list(range(100, 800))
            assert max(map(len, bench.calls)) == 7

    asyncio.run(scenario())


def test_failed_message_of_a_run_is_sent_back_alone() -> None:
    async def scenario() -> None:
        async with quick_bench() as bench:
            bench.failing = {103, 140}
            bench.add(range(100, 200))
            await bench.until(0)
            assert sorted(bench.returned) == [(103, 0), (140, 0)]
            assert sorted(bench.called) == list(range(100, 200))

    asyncio.run(scenario())


def test_messages_behind_a_slow_call_go_to_other_threads() -> None:
    async def scenario() -> None:
        async with quick_bench() as bench:
            bench.slow = {101}
            bench.add(range(100, 160))
            await bench.until(2)  # the loop processes the results of the slow call's run when it ends
            assert sorted(bench.called) == list(range(100, 160))
            assert bench.threads[101] != bench.threads[159]
            assert bench.process.commit_offset <= 101
            bench.go_on.set()
            await bench.until(0)
            assert bench.process.commit_offset == 160

    asyncio.run(scenario())


def test_expired_call_of_a_run_fails_alone() -> None:
    async def scenario() -> None:
        async with quick_bench(replace(SETTINGS, consume_timeout=0.05)) as bench:
            bench.slow = {101}
            bench.add(range(100, 160))
            await bench.until(2)
            while bench.process.in_flight:
                bench.delivery.expire_calls()
                await asyncio.sleep(0.001)
            assert bench.returned == [(101, 0)]
            assert sorted(bench.called) == list(range(100, 160))

    asyncio.run(scenario())


def test_pause_stops_a_run_and_resume_goes_on() -> None:
    async def scenario() -> None:
        async with quick_bench() as bench:
            bench.slow = {101}
            bench.add(range(100, 160))
            await bench.until_called(101)
            bench.delivery.pause()
            before = len(bench.called)
            bench.go_on.set()
            for _ in range(50):
                bench.delivery.settle()
                await asyncio.sleep(0.001)
            assert len(bench.called) <= before + SETTINGS.threads, "calls that had begun at that moment"
            bench.delivery.resume()
            await bench.until(0)
            assert sorted(bench.called) == list(range(100, 160))

    asyncio.run(scenario())


def test_dropped_queue_stops_a_run() -> None:
    async def scenario() -> None:
        async with quick_bench(replace(SETTINGS, threads=1)) as bench:
            bench.slow = {101}
            bench.add(range(100, 160))
            await bench.until_called(101)
            bench.delivery.drop(QUEUE)
            bench.go_on.set()
            await bench.delivery.idle(QUEUE)
            assert bench.called == [100, 101]

    asyncio.run(scenario())


def test_consumers_with_prefetch_or_trace_get_no_runs() -> None:
    """With prefetch other members may get waiting messages; a trace reports each call as it begins."""

    async def scenario() -> None:
        for settings in (replace(SETTINGS, prefetch=64), replace(SETTINGS, trace=lambda _: None)):
            async with quick_bench(settings) as bench:
                bench.add(range(100, 132))
                await bench.until(0)
                assert bench.runs == len(bench.calls) == 32

    asyncio.run(scenario())


ORDERED = replace(SETTINGS, ordered=True, ordered_retry_interval=0.02)


def test_ordered_runs_keep_the_order_of_the_queue() -> None:
    async def scenario() -> None:
        async with quick_bench(ORDERED) as bench:
            bench.add(range(100, 600))
            await bench.until(0)
            assert bench.called == list(range(100, 600))
            assert bench.runs < 250
            assert bench.process.commit_offset == 600

    asyncio.run(scenario())


def test_failure_in_an_ordered_run_repeats_only_its_call() -> None:
    async def scenario() -> None:
        async with quick_bench(replace(ORDERED, batch_size=2)) as bench:
            bench.failing = {105}
            bench.add(range(100, 160))
            await bench.until_called(105)
            await bench.until(56)  # the failed call, and all behind it
            assert bench.called == [*range(100, 106)]
            assert bench.process.commit_offset == 104
            bench.failing = set()
            await bench.until(0)
            assert bench.called == [*range(100, 106), *range(104, 160)]

    asyncio.run(scenario())


def test_parked_key_of_an_ordered_run_delays_no_other_key() -> None:
    async def scenario() -> None:
        async with quick_bench(replace(ORDERED, park_failed_keys=True)) as bench:
            bench.failing = {101}
            messages = [message(offset, key="ab"[offset % 2]) for offset in range(100, 140)]
            bench.delivery.add(bench.process, messages, [10] * 40)
            await bench.until(20)
            assert bench.called == [100, 101, *range(102, 140, 2)]
            bench.failing = set()
            await bench.until(0)
            assert bench.called[21:] == list(range(101, 140, 2))

    asyncio.run(scenario())


def test_runs_take_no_more_messages_than_the_rate_allows() -> None:
    async def scenario() -> None:
        async with quick_bench(replace(SETTINGS, rate_limit=2_000.0)) as bench:
            began = asyncio.get_running_loop().time()
            bench.add(range(100, 700))
            await bench.until(0)
            assert asyncio.get_running_loop().time() - began > 0.15, "200 at once, the others at their rate"
            assert bench.runs < 600

    asyncio.run(scenario())


def test_messages_taken_back_do_not_count_for_the_rate() -> None:
    async def scenario() -> None:
        async with quick_bench(replace(SETTINGS, threads=1, rate_limit=640.0)) as bench:
            bucket = bench.delivery._bucket
            assert bucket is not None
            bucket.take(bucket.available - 64)
            bench.slow = {100}
            bench.add(range(100, 164))
            await bench.until_called(100)
            bench.delivery.pause()
            assert bench.process.ready + 1 == bench.process.in_flight
            assert bucket.available >= bench.process.ready - 1

    asyncio.run(scenario())


def test_run_stops_at_a_failure_that_may_be_an_outage() -> None:
    async def scenario() -> None:
        async with quick_bench(replace(SETTINGS, on_outage="pause", threads=1)) as bench:
            bench.failing = set(range(100, 164))
            bench.add(range(100, 164))
            for _ in range(100):
                await asyncio.sleep(0.001)
            assert len(bench.called) <= 20, "one call at a time once nearly all have failed"
            assert bench.process.in_flight >= 44

    asyncio.run(scenario())


def test_one_slow_call_does_not_end_runs_for_long() -> None:
    latency = ListenerLatency(lambda: 0.0)
    latency.took(64e-5, 64)
    before = latency.calls_per_run
    latency.took(0.02)
    assert latency.calls_per_run == 1
    for _ in range(6):
        latency.took(16e-5, 16)
    assert latency.calls_per_run == before == CALLS_PER_RUN


def test_call_that_has_not_ended_shortens_the_next_runs() -> None:
    latency = ListenerLatency(lambda: 0.0)
    latency.took(64e-5, 64)
    latency.runs_for(0.01)
    latency.runs_for(0.01)
    assert latency.calls_per_run == 1


def test_usually_slow_calls_get_no_runs() -> None:
    latency = ListenerLatency(lambda: 0.0)
    assert latency.calls_per_run == 1, "nothing is known yet"
    for _ in range(100):
        latency.took(0.05)
        latency.took(1e-5)
        assert latency.calls_per_run == 1
