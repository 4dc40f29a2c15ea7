"""Test that messages are gathered in their order and once, in Python and compiled, from any number of threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import pytest

from raymq.actors.errors import ClientClosed
from raymq.actors.protocol import MessageQueue, RecordPositions, SendStatus
from raymq.actors.sending.send_plan import SendParameters
from raymq.actors.sending.sender import SendOutcome
from raymq.client import Message
from raymq.client.callback_executor import CallbackExecutor
from raymq.client.connection import Connection
from raymq.client.produce.batcher import Batcher
from raymq.client.produce.message_batch import MessageBatch, OpenBatches, PendingResult, PlainOpenBatches
from raymq.storage.records.record import decode

pytestmark = pytest.mark.usefixtures("batch_code")

TERMS = SendParameters(5.0, 0)
SECONDS = 20.0
#: The tests that are run again without compiled code.
FIELDS_TESTED = ("message", "message_batch", "message_encoder", "gathering_messages", "forked_messages")
OPTIONS = ["-q", "-p", "no:cacheprovider", "-k", "not without_compiled_code"]


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


def test_message_is_added_in_one_step_only_if_one_is_enough() -> None:
    batches = OpenBatches(PendingResult, 192, 1_000)
    if type(batches) is PlainOpenBatches:
        pytest.skip("only compiled code has such a step")
    batch, message = MessageBatch("t", TERMS), Message("t", bytes(100))
    batches["t"] = batch
    first = batches.add(message)
    assert type(first) is PendingResult
    assert (first.batch, first.index, batch.count, batch.bytes, batch.messages) == (batch, 0, 1, 292, [message])
    assert batches.add(Message("t", bytes(1_000 - 2 * 192 - 100))) is None, "the batch is full and has to be taken"
    assert batches.add(Message("other", b"x")) is None
    assert batches.add(Message("t", b"x", delay_level=1)) is None
    assert batches.add(b"no message") is None
    batches.is_full = True
    assert batches.add(message) is None
    batches.is_full, batch.is_taken = False, True
    assert batches.add(message) is None
    assert (batch.count, batch.bytes, batch.messages) == (1, 292, [message])


def test_messages_are_gathered_without_compiled_code(repository: Path) -> None:
    pytest.importorskip("raymq_native")
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in FIELDS_TESTED]
    program = f"import sys, pytest; sys.modules['raymq_native'] = None; sys.exit(pytest.main({files + OPTIONS}))"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=repository, timeout=120)
