"""An answer to an append that does not say where each record lies ends the send, as one whose outcome is unknown."""

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


def good(request: Command, places: int) -> Command:
    offsets = np.arange(places)
    return appended_answer(request, SendStatus.SEND_OK, RecordPositions("t", np.zeros(places), offsets, offsets))


def without(field: str, **others: Any) -> Any:
    def answer(request: Command, records: int) -> Command:
        whole = good(request, records)
        whole.fields = {name: value for name, value in whole.fields.items() if name != field} | others
        return whole

    return answer


ANSWERS = {
    "a place too few": lambda request, records: good(request, records - 1),
    "a place too many": lambda request, records: good(request, records + 1),
    "no places": lambda request, _: good(request, 0),
    "nothing": lambda request, _: request.response(ResponseCode.SUCCESS, {}),
    "no topic": without("topic"),
    "a topic that is none": without("topic", topic=7),
    "no status": without("status"),
    "a status that is none": without("status", status="FINE"),
    "no offsets": without("queue_offsets"),
    "half a number": without("physical_offsets", physical_offsets=b"123"),
    "a number that is a text": without("queue_ids", queue_ids="1234"),
}


@pytest.fixture(params=ANSWERS.values(), ids=ANSWERS.keys())
def hostile(request: pytest.FixtureRequest, services: Services, mq: Connection) -> Connection:
    """A connection to brokers that answer so."""
    Admin(mq).create_topic("t", queues=1)

    def answer(_: Any, append: Command) -> Command:
        made: Command = request.param(append, len(append.fields["sizes"]) // 4)
        return made

    for broker in services.brokers.values():
        broker._server.handlers = {**broker._server.handlers, RequestCode.APPEND_RECORDS: answer}
    return mq


def test_it_is_unknown_what_became_of_the_messages(hostile: Connection) -> None:
    with Producer(hostile, "p", linger=0.01, timeout=5.0) as producer:
        futures = [producer.send_async(Message("t", b"%d" % number)) for number in range(5)]
        assert [type(future.exception(20)) for future in futures] == [OutcomeUnknown] * 5
    with Producer(hostile, "q", timeout=5.0) as producer:
        with pytest.raises(OutcomeUnknown):
            producer.send(Message("t", b"x" * 70_000))
        with pytest.raises(OutcomeUnknown):
            producer.send_batch([Message("t", b"x"), Message("t", b"y")])
    with Producer(hostile, "r", idempotent=True, timeout=5.0) as producer, pytest.raises(OutcomeUnknown):
        producer.send_batch([Message("t", b"x"), Message("t", b"y")])
