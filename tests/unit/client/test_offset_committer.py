"""Test that offset commits at a hanging broker do not delay those at other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from raymq.actors.protocol import MessageQueue
from raymq.client.push.offset_committer import OffsetCommitter
from raymq.client.push.process_queue import ProcessQueue


class Bench:
    """Queues a0 and a1 of a responsive broker, and b0, which answers after `go_on`."""

    def __init__(self) -> None:
        self.processes = [ProcessQueue(MessageQueue("t", name[0], int(name[1])), 0) for name in ("a0", "a1", "b0")]
        self.committed: list[str] = []
        self.begun: list[str] = []
        self.go_on = asyncio.Event()
        self.committing = OffsetCommitter(self._commit)

    async def _commit(self, process: ProcessQueue) -> None:
        name = f"{process.queue.broker}{process.queue.queue_id}"
        self.begun.append(name)
        if process.queue.broker == "b":
            await self.go_on.wait()
        self.committed.append(name)

    async def round(self) -> None:
        self.committing.begin(self.processes)
        for _ in range(5):
            await asyncio.sleep(0)


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(scenario(Bench()), 5)

    asyncio.run(whole())


def test_hanging_broker_does_not_delay_commits_at_others() -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(1, 4):
            await bench.round()
            assert bench.committed == ["a0", "a1"] * number
        assert bench.begun.count("b0") == 1, "it was not asked again"
        bench.go_on.set()
        await bench.committing.finish()
        assert bench.committed.count("b0") == 1
        await bench.round()
        assert bench.committed.count("b0") == 2

    run(scenario)


def test_finish_waits_for_the_last_answer() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.committing.finish()
        await bench.round()
        finishing = asyncio.ensure_future(bench.committing.finish())
        await asyncio.sleep(0)
        assert not finishing.done()
        bench.go_on.set()
        await finishing
        assert sorted(bench.committed) == ["a0", "a1", "b0"]

    run(scenario)


def test_finish_commits_due_offsets_while_another_broker_hangs() -> None:
    async def scenario(bench: Bench) -> None:
        bench.committing.begin(bench.processes)
        committed_before = bench.committed.copy()
        finishing = asyncio.ensure_future(bench.committing.finish(lambda: bench.processes))
        for _ in range(10):
            await asyncio.sleep(0)
        assert committed_before == []
        assert bench.committed == ["a0", "a1"] * 2, "what was under way, and what is due now"
        assert not finishing.done(), "b hangs"
        bench.go_on.set()
        await finishing
        assert bench.committed.count("b0") == 2

    run(scenario)
