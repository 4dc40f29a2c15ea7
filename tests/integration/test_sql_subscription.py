"""Test consumers that subscribe by an SQL92 condition, over real sockets."""

from __future__ import annotations

import pytest

from raymq.client import Admin, Connection, InvalidInput, Message, Producer, PushConsumer, Sql
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def test_sql_filter_delivers_only_matching_messages(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    expected = []
    for price in range(10):
        for tag in ("a", "c"):
            body = b"%s%d" % (tag.encode(), price)
            producer.send(Message("t", body, tags=tag, properties={"price": str(price)}))
            expected += [body] if tag == "a" and price > 6 else []
    producer.send(Message("t", b"no price", tags="a"))
    taker = RecordingListener()
    with PushConsumer(mq, "g", {"t": Sql("price > 6 and TAGS in ('a','b')")}, taker):
        poll_until(lambda: len(taker.taken) >= len(expected), 10)
        # The committed offset also passes messages that do not match.
        poll_until(lambda: all(p.lag == 0 for q, p in admin.group_progress("g").items() if q.topic == "t"), 10)
        producer.send(Message("t", b"late", tags="b", properties={"price": "7.5"}))
        poll_until(lambda: b"late" in taker.bodies, 10)
    assert taker.bodies == sorted([*expected, b"late"])


def test_invalid_sql_condition_is_refused_at_start(mq: Connection, admin: Admin) -> None:
    consumer = PushConsumer(mq, "g", {"t": Sql("price > > 3")}, RecordingListener())
    with pytest.raises(InvalidInput, match="character 9"):
        consumer.start()
    with pytest.raises(TypeError):
        Sql(3)  # type: ignore[arg-type]
