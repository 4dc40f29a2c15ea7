"""Test that messages are gathered in their order and once, in Python and compiled, from any number of threads."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import SimpleNamespace
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import pytest

from raymq.actors.errors import ClientClosed
from raymq.actors.protocol import MessageQueue, RecordPositions, SendStatus
from raymq.actors.sending.sender import SendOutcome, SendParameters
from raymq.client import Message
from raymq.client.callback_executor import CallbackExecutor
from raymq.client.connection import Connection
from raymq.client.produce.batcher import Batcher
from raymq.client.produce.message_batch import MessageBatch, PendingResult
from raymq.storage.records import native_kernels
from raymq.storage.records.record import decode

pytestmark = pytest.mark.usefixtures("batch_code")

TERMS = SendParameters(5.0, 0)
SECONDS = 20.0


class Sends:
    """Keep the bodies that are sent; every send is stored in one queue."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def send(self, topic: str, records: Any, sizes: npt.NDArray[np.int32], _: SendParameters) -> SendOutcome:
        at, first = 0, len(self.bodies)
        for size in sizes.tolist():
            self.bodies.append(decode(records, at, check_crc=False).body)
            at += size
        await asyncio.sleep(0)
        offsets = np.arange(first, first + len(sizes), dtype=np.int64)
        placed = RecordPositions(topic, np.zeros(len(sizes), np.int32), offsets, offsets)
        return SendOutcome(SendStatus.SEND_OK, MessageQueue(topic, "b", 0), "10.0.0.1:1", placed)


class Loop:
    """An event loop on a thread of its own, with what a batcher needs of a connection."""

    def __enter__(self) -> Self:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.callbacks = CallbackExecutor()
        self.pool = SimpleNamespace(local_host="10.0.0.1")
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def batcher(self, sends: Sends, **options: Any) -> Batcher:
        usual = {"linger": 0.001, "buffer_bytes": 1 << 20, "when_full": "block"} | options
        made = Batcher(cast("Connection", self), cast("Any", sends), TERMS, **usual)
        cast("Any", made)._limits = SimpleNamespace(known=lambda *_: None)
        return made


def test_messages_of_one_thread_are_sent_in_order() -> None:
    with Loop() as loop:
        sends = Sends()
        batcher = loop.batcher(sends)
        results = [batcher.add(Message("t", b"%d" % number)) for number in range(20_000)]
        assert batcher.close(SECONDS)
        assert sends.bodies == [b"%d" % number for number in range(20_000)]
        assert results[-1].result(SECONDS).queue_offset == 19_999
        assert batcher._taken_bytes == 0


def test_messages_of_many_threads_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with Loop() as loop:
            sends = Sends()
            batcher = loop.batcher(sends, buffer_bytes=20_000)

            def add(thread: int) -> None:
                for number in range(3_000):
                    batcher.add(Message(f"t{number % 2}", b"%d %d" % (thread, number)))

            threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert batcher.close(SECONDS)
    finally:
        sys.setswitchinterval(before)
    assert sorted(sends.bodies) == sorted(b"%d %d" % (t, n) for t in range(4) for n in range(3_000))
    assert batcher._taken_bytes == 0, "what is taken and what is sent count the same bytes"


def test_closed_batcher_refuses_messages_in_an_open_batch() -> None:
    with Loop() as loop:
        batcher = loop.batcher(Sends(), linger=60.0)
        batcher.add(Message("t", b"1"))
        batcher.begin_close()
        with pytest.raises(ClientClosed):
            batcher.add(Message("t", b"2"))
        assert batcher.close(SECONDS)


def test_compiled_step_refuses_what_needs_more_than_one_step(batch_code: str) -> None:
    kernels = native_kernels.kernels
    if kernels is None:
        pytest.skip(f"{batch_code} has no such step")
    batch, message = MessageBatch("t", TERMS), Message("t", bytes(100))
    batches: dict[Any, Any] = {"t": batch}

    def add(made: Message, limit: int = 1_000) -> Any:
        return kernels.add_message(batches, made, PendingResult, 192, limit)

    first = add(message)
    assert type(first) is PendingResult
    assert (first.batch, first.index, batch.count, batch.bytes, batch.messages) == (batch, 0, 1, 292, [message])
    state = dict(vars(batch), messages=[message])
    assert add(message, limit=292 + 292) is None, "the batch would be full, so it has to be taken"
    assert add(Message("other", b"x")) is None
    batch.is_taken = True
    assert add(message) is None
    assert dict(vars(batch), messages=list(batch.messages)) == state | {"is_taken": True}
