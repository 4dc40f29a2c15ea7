"""Test that an append answer without the position of each record ends the send with an unknown outcome."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raymq.actors.protocol import RecordPositions, SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.append_commands import appended_answer
from raymq.actors.wire.frame import Command
from raymq.client import Admin, Connection, Message, OutcomeUnknown, Producer
from tests.integration.conftest import Services

pytestmark = pytest.mark.integration


def valid_answer(request: Command, places: int) -> Command:
    offsets = np.arange(places)
    return appended_answer(request, SendStatus.SEND_OK, RecordPositions("t", np.zeros(places), offsets, offsets))


def answer_without(field: str, **others: Any) -> Any:
    def answer(request: Command, records: int) -> Command:
        whole = valid_answer(request, records)
        whole.fields = {name: value for name, value in whole.fields.items() if name != field} | others
        return whole

    return answer


ANSWERS = {
    "a place too few": lambda request, records: valid_answer(request, records - 1),
    "a place too many": lambda request, records: valid_answer(request, records + 1),
    "no places": lambda request, _: valid_answer(request, 0),
    "nothing": lambda request, _: request.response(ResponseCode.SUCCESS, {}),
    "no topic": answer_without("topic"),
    "a topic that is none": answer_without("topic", topic=7),
    "no status": answer_without("status"),
    "a status that is none": answer_without("status", status="FINE"),
    "no offsets": answer_without("queue_offsets"),
    "half a number": answer_without("physical_offsets", physical_offsets=b"123"),
    "a number that is a text": answer_without("queue_ids", queue_ids="1234"),
}


@pytest.fixture(params=ANSWERS.values(), ids=ANSWERS.keys())
def malformed(request: pytest.FixtureRequest, services: Services, mq: Connection) -> Connection:
    """Return a connection to brokers that give this malformed answer."""
    Admin(mq).create_topic("t", queues=1)

    def answer(_: Any, append: Command) -> Command:
        made: Command = request.param(append, len(append.fields["sizes"]) // 4)
        return made

    for broker in services.brokers.values():
        broker._server.handlers = {**broker._server.handlers, RequestCode.APPEND_RECORDS: answer}
    return mq


def test_malformed_append_answer_raises_outcome_unknown(malformed: Connection) -> None:
    with Producer(malformed, "p", linger=0.01, timeout=5.0) as producer:
        futures = [producer.send_async(Message("t", b"%d" % number)) for number in range(5)]
        assert [type(future.exception(20)) for future in futures] == [OutcomeUnknown] * 5
    with Producer(malformed, "q", timeout=5.0) as producer:
        with pytest.raises(OutcomeUnknown):
            producer.send(Message("t", b"x" * 70_000))
        with pytest.raises(OutcomeUnknown):
            producer.send_batch([Message("t", b"x"), Message("t", b"y")])
    with Producer(malformed, "r", idempotent=True, timeout=5.0) as producer, pytest.raises(OutcomeUnknown):
        producer.send_batch([Message("t", b"x"), Message("t", b"y")])
