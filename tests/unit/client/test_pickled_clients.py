"""Test pickling of clients, as in the closure or the arguments of a Ray task."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ray import cloudpickle
from ray._common.serialization import pickle_dumps

from raymq.client import Admin, Connection, ConsumeResult, Producer, PushConsumer


@pytest.fixture
def mq() -> Iterator[Connection]:
    with Connection(["127.0.0.1:1"]) as connection:
        yield connection


def producer(mq: Connection) -> Producer:
    return Producer(mq, "g")


def push_consumer(mq: Connection) -> PushConsumer:
    return PushConsumer(mq, "g", {"t": "*"}, lambda _: ConsumeResult.SUCCESS)


@pytest.mark.parametrize("make", [producer, push_consumer])
def test_pickling_a_client_says_to_create_it_in_the_task(mq: Connection, make: Callable[[Connection], Any]) -> None:
    client = make(mq)
    wanted = rf"make it inside the task: {type(client).__name__}\(mq, \.\.\.\)"
    with pytest.raises(pickle.PicklingError, match=wanted) as caught:
        pickle_dumps(lambda: client, "Could not serialize the function")  # Ray's call for a remote function
    assert "\n" not in str(caught.value)


def test_admin_and_its_connection_can_be_pickled(mq: Connection) -> None:
    with Admin(mq) as admin:
        again = cloudpickle.loads(cloudpickle.dumps(lambda: admin))()
        assert isinstance(again, Admin)
        again._mq.close()
