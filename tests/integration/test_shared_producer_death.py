"""Test a shared producer whose actor is killed during sends, so that outcomes may be unknown."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from raymq import cluster
from raymq.actors.naming import producer_name
from raymq.actors.protocol import PERM_READ
from raymq.client import Admin, Message, Producer, PullConsumer
from raymq.client.errors import OutcomeUnknown, RayMQError, SendError
from tests.polling import poll_until

pytestmark = [pytest.mark.integration, pytest.mark.ray]

NAMESPACE = "dying-producers"
THREADS = 8


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster.Cluster]:
    root: Path = tmp_path_factory.mktemp("dying")
    # With synchronous flush most sends wait for the disk, between append and answer, when the actor dies.
    with cluster.start(brokers=1, root=root, namespace=NAMESPACE, config={"flush": "sync"}) as started:
        yield started


def read_stored_counts(mq: cluster.Cluster, topic: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    with PullConsumer(mq, "reader") as pull:
        for queue in pull.queues(topic):
            pull.seek(queue, 0)
            while pull.position(queue) < pull.offsets(queue)[1]:
                found.update(message.body for message in pull.poll(queue, 1_000))
    return found


@pytest.mark.long
@pytest.mark.parametrize(("idempotent", "retries"), [(False, 0), (True, 0), (True, 2)])
def test_actor_death_causes_no_false_outcome_or_duplicate(mq: cluster.Cluster, idempotent: bool, retries: int) -> None:
    topic = f"dying-{int(idempotent)}-{retries}"
    Admin(mq).create_topic(topic, queues=1)
    producer = Producer(mq, topic, shared=True, idempotent=idempotent, retries=retries, timeout=20.0)
    outcomes: dict[bytes, str] = {}
    ended = threading.Event()

    def send(thread: int) -> None:
        number = 0
        while not ended.is_set():
            body = b"%d-%d" % (thread, (number := number + 1))
            try:
                producer.send(Message(topic, body))
                outcomes[body] = "stored"
            except SendError as error:
                outcomes[body] = type(error).__name__

    def acknowledged() -> int:
        return sum(outcome == "stored" for outcome in list(outcomes.values()))

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            before = acknowledged()
            poll_until(lambda before=before: acknowledged() > before + 50, 60, "it goes on with another actor")
            ray.kill(ray.get_actor(producer_name(topic), namespace=NAMESPACE))
        before, deadline = acknowledged(), time.monotonic() + 60
        poll_until(lambda: acknowledged() > before + 50, deadline - time.monotonic())
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)
    found = read_stored_counts(mq, topic)
    assert not [body for body, outcome in outcomes.items() if outcome == "NotStored" and body in found]
    assert not [body for body, outcome in outcomes.items() if outcome == "stored" and body not in found]
    assert not [body for body, times in found.items() if times > 1 and (idempotent or not retries)]
    producer.close()


def test_refusal_after_actor_death_is_outcome_unknown(mq: cluster.Cluster) -> None:
    """Cover a regression: the next actor reported a stored message as not stored or refused."""
    topic = "refused-behind"
    admin = Admin(mq)
    admin.create_topic(topic, queues=1)
    producer = Producer(mq, topic, shared=True, timeout=30.0)
    outcomes: dict[bytes, RayMQError | None] = {}

    def send(thread: int) -> None:
        number, refused = 0, False
        while not refused:
            body = b"%d-%d" % (thread, (number := number + 1))
            try:
                producer.send(Message(topic, body))
                outcomes[body] = None
            except RayMQError as error:
                outcomes[body], refused = error, True

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    poll_until(lambda: len(outcomes) > 50, 60)
    ray.kill(ray.get_actor(producer_name(topic), namespace=NAMESPACE), no_restart=False)
    admin.update_topic(topic, permission=PERM_READ)
    for thread in threads:
        thread.join(60)
    found = read_stored_counts(mq, topic)
    unknown = {body: error for body, error in outcomes.items() if isinstance(error, OutcomeUnknown)}
    refused = {body: error for body, error in outcomes.items() if error is not None and body not in unknown}
    assert not {body: error for body, error in refused.items() if body in found}
    assert all(len(error.attempts) > 1 for error in unknown.values())  # includes the attempts of the former actor
    producer.close()
