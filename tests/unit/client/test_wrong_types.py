"""An argument of the wrong kind is a TypeError that names what is wanted, in every constructor and call."""

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
    """A connection to nobody: what is wrong is said before anything is asked."""
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
def test_a_client_wants_a_connection(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"mq must be a connection, as cluster.start\(\) and cluster.connect\(\)"):
        make()


def test_a_consumer_wants_a_mapping_and_a_function(mq: Connection) -> None:
    with pytest.raises(TypeError, match="subscriptions must be a mapping of topics"):
        PushConsumer(mq, "g", print, SUBSCRIPTIONS)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="subscriptions must be a mapping of topics"):
        SimpleConsumer(mq, "g", "t")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="listener must be a function"):
        PushConsumer(mq, "g", SUBSCRIPTIONS, "listener")  # type: ignore[arg-type]


def test_sends_want_messages(mq: Connection) -> None:
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
def test_a_message_wants_a_topic_of_text(topic: Any) -> None:
    with pytest.raises(TypeError, match="topic must be str, not"):
        Message(topic, b"x")


def test_a_body_of_text_says_how_to_encode_it() -> None:
    with pytest.raises(TypeError, match=r"body must be bytes, not str: .*\.encode\(\)"):
        Message("t", "text")  # type: ignore[arg-type]


def test_an_empty_body_names_the_brokers_limit() -> None:
    with pytest.raises(InvalidInput, match="body: at least 1 byte, at most the brokers' max_message_bytes"):
        Message("t", b"")


@pytest.mark.parametrize("wrong", [None, 5, "queue", ("t", "a", 0)])
def test_a_wrong_queue_is_an_invalid_input_too(wrong: Any) -> None:
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
def test_numbers_are_written_for_people(value: float, shown: str) -> None:
    assert number_text(value) == shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(3.0, "no answer within 3 s"), (2.9996, "no answer within 3 s"), (0.1, "no answer within 0.1 s")],
)
def test_a_missing_answer_says_how_long_it_was_waited_for(seconds: float, said: str) -> None:
    assert no_answer_within(seconds) == said


@pytest.mark.parametrize("seconds", [-0.000448, 0.0, 1e-9])
def test_time_that_was_over_is_no_number(seconds: float) -> None:
    assert no_answer_within(seconds) == "no answer: no time was left to wait for one"


def test_the_longest_time_is_written_for_people() -> None:
    with pytest.raises(InvalidInput, match=r"timeout: 0 to 31,536,000 seconds \(a year\); got"):
        arguments.duration("timeout", 1e12)
