"""Waiting for a consumer in asyncio code: who gives up leaves nothing that keeps the program from its end."""

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


def test_a_wait_that_is_given_up_does_not_hold_up_the_end_of_its_loop(consumer: PushConsumer) -> None:
    """asyncio.run never returned: a thread of the loop's waited for the consumer, and the loop for the thread."""

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.await_(), 0.2)

    with consumer:
        program = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
        program.start()
        program.join(20)
        assert not program.is_alive()
        assert not consumer._hearers


def test_a_wait_ends_with_the_consumer_and_with_its_time(consumer: PushConsumer) -> None:
    async def main() -> tuple[bool, bool, bool]:
        async with consumer:
            before = time.monotonic()
            in_time = await consumer.await_(0.2)
            assert time.monotonic() - before < 20
            waiting = asyncio.ensure_future(consumer.await_())
            await asyncio.sleep(0)
        return in_time, await asyncio.wait_for(waiting, 20), await consumer.await_()

    assert asyncio.run(main()) == (False, True, True)
