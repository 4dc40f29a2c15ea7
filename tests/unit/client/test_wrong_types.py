"""Test that an argument of a wrong type raises a TypeError that names the expected type."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raymq.client import (
    Admin,
    Connection,
    InvalidInput,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    arguments,
)
from raymq.storage.errors import WrongType, no_answer_within, number_text

SUBSCRIPTIONS = {"t": "*"}


@pytest.fixture
def mq() -> Iterator[Connection]:
    """Yield a connection without a server: types are checked before any request."""
    with Connection(["127.0.0.1:9"]) as connection:
        yield connection


@pytest.mark.parametrize(
    "make",
    [
        lambda: Producer("raymq", "a"),  # type: ignore[arg-type]
        lambda: SimpleConsumer("g", object(), SUBSCRIPTIONS),  # type: ignore[arg-type]
        lambda: PullConsumer("g", object()),  # type: ignore[arg-type]
        lambda: PushConsumer("g", object(), SUBSCRIPTIONS, print),  # type: ignore[arg-type]
        lambda: Admin(["127.0.0.1:9876"]),  # type: ignore[arg-type]
        lambda: Admin(None),  # type: ignore[arg-type]
    ],
)
def test_client_without_a_connection_raises_type_error(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"mq must be a connection, as cluster.start\(\) and cluster.connect\(\)"):
        make()


def test_consumer_checks_subscriptions_and_listener(mq: Connection) -> None:
    with pytest.raises(TypeError, match="subscriptions must be a mapping of topics"):
        PushConsumer(mq, "g", print, SUBSCRIPTIONS)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="subscriptions must be a mapping of topics"):
        SimpleConsumer(mq, "g", "t")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="listener must be a function"):
        PushConsumer(mq, "g", SUBSCRIPTIONS, "listener")  # type: ignore[arg-type]


def test_send_of_other_objects_raises_type_error(mq: Connection) -> None:
    with Producer(mq, "p") as producer:
        for send in (producer.send, producer.send_async, producer.send_oneway):
            for wrong in ("t", b"x", {"topic": "t"}):
                with pytest.raises(TypeError, match="message must be a Message"):
                    send(wrong)  # type: ignore[operator]
        for several in (Message("t", b"x"), ["x"], "x", 5):
            with pytest.raises(TypeError, match="messages must be a list of Message objects"):
                producer.send_batch(several)  # type: ignore[arg-type]
        for queue in (0, "t", ("t", "a", 0)):
            with pytest.raises(TypeError, match="queue must be a MessageQueue"):
                producer.send(Message("t", b"x"), queue=queue)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", [5, b"t", ["t"], {}, None])
def test_message_topic_of_another_type_raises_type_error(topic: Any) -> None:
    with pytest.raises(TypeError, match="topic must be str, not"):
        Message(topic, b"x")


def test_text_body_error_suggests_encode() -> None:
    with pytest.raises(TypeError, match=r"body must be bytes, not str: .*\.encode\(\)"):
        Message("t", "text")  # type: ignore[arg-type]


def test_empty_body_error_names_max_message_bytes() -> None:
    with pytest.raises(InvalidInput, match="body: at least 1 byte, at most the brokers' max_message_bytes"):
        Message("t", b"")


@pytest.mark.parametrize("wrong", [None, 5, "queue", ("t", "a", 0)])
def test_wrong_queue_type_is_also_invalid_input(wrong: Any) -> None:
    with pytest.raises(WrongType) as caught:
        arguments.queue("queue", wrong)
    assert isinstance(caught.value, InvalidInput)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.field) == (str(caught.value), "queue")
    assert arguments.queue("queue", MessageQueue("t", "a", 0)).broker == "a"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (31_536_000.0, "31536000"),
        (3.0, "3"),
        (0.25, "0.25"),
        (0.000448, "0.000448"),
        (1e-12, "0"),
        (-0.0, "0"),
        (0.1 + 0.2, "0.3"),
        (123_456_789.5, "123456790"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_in_messages_are_readable(value: float, shown: str) -> None:
    assert number_text(value) == shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(3.0, "no answer within 3 s"), (2.9996, "no answer within 3 s"), (0.1, "no answer within 0.1 s")],
)
def test_timeout_text_has_the_seconds(seconds: float, said: str) -> None:
    assert no_answer_within(seconds) == said


@pytest.mark.parametrize("seconds", [-0.000448, 0.0, 1e-9])
def test_timeout_text_without_time_left_has_no_number(seconds: float) -> None:
    assert no_answer_within(seconds) == "no answer: no time was left to wait for one"


def test_duration_error_has_a_readable_maximum() -> None:
    with pytest.raises(InvalidInput, match=r"timeout: 0 to 31,536,000 seconds \(a year\); got"):
        arguments.duration("timeout", 1e12)
