"""Test waiting for a push consumer in asyncio code, with and without a timeout."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from raymq.client import Admin, Connection, ConsumeResult, PushConsumer

pytestmark = pytest.mark.integration


@pytest.fixture
def consumer(mq: Connection, admin: Admin) -> PushConsumer:
    del admin
    return PushConsumer(mq, "g", {"t": "*"}, lambda _: ConsumeResult.SUCCESS)


def test_cancelled_wait_does_not_block_loop_shutdown(consumer: PushConsumer) -> None:
    """Cover a regression: asyncio.run never returned.

    A thread of the loop waited for the consumer, and the loop waited for the thread.
    """

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.await_(), 0.2)

    with consumer:
        program = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
        program.start()
        program.join(20)
        assert not program.is_alive()
        assert not consumer._end._listeners


def test_wait_ends_with_consumer_or_timeout(consumer: PushConsumer) -> None:
    async def main() -> tuple[bool, bool, bool]:
        async with consumer:
            before = time.monotonic()
            in_time = await consumer.await_(0.2)
            assert time.monotonic() - before < 20
            waiting = asyncio.ensure_future(consumer.await_())
            await asyncio.sleep(0)
        return in_time, await asyncio.wait_for(waiting, 20), await consumer.await_()

    assert asyncio.run(main()) == (False, True, True)
