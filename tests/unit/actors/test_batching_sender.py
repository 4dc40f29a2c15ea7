"""Test that the batching sender joins sends into few appends, with a result for each caller."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from raymq.actors.errors import InvalidInput, NotStored
from raymq.actors.protocol import MessageQueue, RecordPositions, SendStatus
from raymq.actors.request_limits import PART_BYTES
from raymq.actors.sending import batching_sender
from raymq.actors.sending.batching_sender import BatchingSender
from raymq.actors.sending.send_plan import SendParameters
from raymq.actors.sending.sender import SendOutcome, Sizes

QUEUE = MessageQueue("t", "a", 0)
TERMS = SendParameters(5.0, 2)
FIXED = SendParameters(5.0, 2, queue=QUEUE)


class Recorder:
    """Record appends, and store them once `may_go_on` is set."""

    def __init__(self) -> None:
        self.appends: list[tuple[bytes, SendParameters]] = []
        self.stored = 0
        self.may_go_on = asyncio.Event()

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: SendParameters) -> SendOutcome:
        self.appends.append((bytes(records), terms))
        await self.may_go_on.wait()
        if b"bad" in records:
            raise InvalidInput("records", "good ones", "bad")
        if b"lost" in records:
            raise NotStored("no broker")
        offsets = self.stored + np.arange(len(sizes))
        self.stored += len(sizes)
        return SendOutcome(
            SendStatus.SEND_OK,
            QUEUE,
            "h:1",
            RecordPositions(topic, np.zeros(len(sizes), np.int32), offsets, offsets * 10),
        )


async def gather(
    recorder: Recorder, *bodies: bytes, terms: SendParameters = TERMS
) -> list[SendOutcome | BaseException]:
    pool = BatchingSender(recorder)
    sends = []
    for body in bodies:
        sends.append(asyncio.ensure_future(pool.send("t", bytearray(body), np.array([len(body)], np.int32), terms)))
        for _ in range(3):
            await asyncio.sleep(0)  # let the sends begin
    recorder.may_go_on.set()
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert not pool._waiting
    assert not pool._running
    return outcomes


def test_unexpected_error_of_append_reaches_all_callers() -> None:
    """Guard against later callers that wait for ever."""

    async def send() -> None:
        class Failing(Recorder):
            async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: SendParameters) -> SendOutcome:
                await super().send(topic, records, sizes, terms)
                raise OSError("nobody expected that")

        outcomes = await asyncio.wait_for(gather(Failing(), b"1", b"2", b"3", terms=FIXED), 5)
        assert [type(each) for each in outcomes] == [OSError] * 3

    asyncio.run(send())


def test_each_caller_gets_its_own_error_object() -> None:
    """Keep errors apart: an outbox marks a caller's error when it keeps its messages."""

    async def send() -> None:
        outcomes = await gather(Recorder(), b"1", b"lost 2", b"lost 3", terms=FIXED)
        lost = [each for each in outcomes if isinstance(each, NotStored)]
        assert [str(each) for each in lost] == ["no broker"] * 2
        lost[0].kept = True
        assert not lost[1].kept

    asyncio.run(send())


def test_cancelled_waiting_send_is_not_sent() -> None:
    """Leave the message to the closed outbox, which sends it later."""

    async def send() -> list[bytes]:
        recorder = Recorder()
        pool = BatchingSender(recorder)
        sizes = np.array([1], np.int32)
        sends = []
        for body in (b"1", b"2", b"3"):
            sends.append(asyncio.ensure_future(pool.send("t", bytearray(body), sizes, FIXED)))
            await asyncio.sleep(0.01)
        sends[1].cancel()
        recorder.may_go_on.set()
        await asyncio.gather(*sends, return_exceptions=True)
        return [records for records, _ in recorder.appends]

    assert asyncio.run(send()) == [b"1", b"3"]


def test_append_is_cancelled_with_its_last_caller() -> None:
    async def send() -> list[bytes]:
        recorder, ended = Recorder(), list[bytes]()

        class Ended(Recorder):
            async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: SendParameters) -> SendOutcome:
                try:
                    return await recorder.send(topic, records, sizes, terms)
                except asyncio.CancelledError:
                    ended.append(bytes(records))
                    raise

        pool = BatchingSender(Ended())
        sends = []
        for body in (b"1", b"2"):
            sends.append(asyncio.ensure_future(pool.send("t", bytearray(body), np.array([1], np.int32), FIXED)))
            await asyncio.sleep(0.01)
        sends[0].cancel()
        await asyncio.sleep(0.01)
        recorder.may_go_on.set()
        assert offsets([await asyncio.wait_for(sends[1], 5)]) == [0]
        return ended

    assert asyncio.run(send()) == [b"1"]


def offsets(outcomes: list[SendOutcome | BaseException]) -> list[int]:
    return [int(sent.placed.queue_offsets[0]) for sent in outcomes if isinstance(sent, SendOutcome)]


def test_waiting_sends_are_joined() -> None:
    async def run() -> None:
        recorder = Recorder()
        outcomes = await gather(recorder, *(b"%d" % number for number in range(10)), terms=FIXED)
        assert [records for records, _ in recorder.appends] == [b"0", b"123456789"]
        assert offsets(outcomes) == list(range(10))
        assert recorder.appends[1][1].timeout <= FIXED.timeout

    asyncio.run(run())


def test_sends_without_fixed_queue_use_two_appends() -> None:
    async def run() -> None:
        recorder = Recorder()
        await gather(recorder, b"0", b"1", b"2", b"3")
        assert [records for records, _ in recorder.appends][:2] == [b"0", b"1"]
        assert len(recorder.appends) == 3

    asyncio.run(run())


def test_joined_batches_are_bounded() -> None:
    async def run() -> None:
        recorder = Recorder()
        await gather(recorder, b"0", *([bytes(PART_BYTES // 2)] * 3), bytes(PART_BYTES + 1), terms=FIXED)
        assert [len(records) for records, _ in recorder.appends] == [1, PART_BYTES, PART_BYTES // 2, PART_BYTES + 1]

    asyncio.run(run())


@pytest.mark.parametrize(("word", "failing"), [(b"bad", 1), (b"lost", 3)])
def test_errors_reach_only_their_callers(word: bytes, failing: int) -> None:
    async def run() -> None:
        recorder = Recorder()
        outcomes = await gather(recorder, b"0", b"1", word, b"2", terms=FIXED)
        assert sum(isinstance(outcome, BaseException) for outcome in outcomes) == failing
        assert len(offsets(outcomes)) == 4 - failing
        assert isinstance(outcomes[2], InvalidInput | NotStored)

    asyncio.run(run())


def test_joined_sends_keep_half_of_their_timeout() -> None:
    """Guard against sends that fail together with the first one of an outage."""

    async def run() -> None:
        recorder = Recorder()
        pool = BatchingSender(recorder)
        now = 100.0

        def send(body: bytes) -> asyncio.Future[SendOutcome]:
            return asyncio.ensure_future(pool.send("t", bytearray(body), np.array([len(body)], np.int32), FIXED))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batching_sender, "time", SimpleNamespace(monotonic=lambda: now))
            sends = []
            for body, at in ((b"hangs", 100.0), (b"over", 100.0), (b"late", 101.0), (b"later", 101.1), (b"new", 104.9)):
                now = at
                sends.append(send(body))
                await asyncio.sleep(0)
            now = 105.5
            recorder.may_go_on.set()
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(outcomes[1], NotStored)
        assert [records for records, _ in recorder.appends] == [b"hangs", b"latelater", b"new"]
        assert [round(terms.timeout, 1) for _, terms in recorder.appends] == [5.0, 0.5, 4.4]
        assert offsets(outcomes) == [0, 1, 2, 3]

    asyncio.run(run())
