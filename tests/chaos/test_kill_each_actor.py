"""SIGKILL each kind of actor once under a running producer and consumer: nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq import cluster
from raymq.client import Admin, Producer, PushConsumer
from raymq.cluster import Cluster
from tests.chaos.actors import await_restart, kill
from tests.chaos.traffic import Traffic
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [pytest.mark.chaos, pytest.mark.ray]

NAMESPACE = "chaos"
#: Acknowledged messages before the kill, and after the actor's restart.
BEFORE, AFTER = 150, 150


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root: Path = tmp_path_factory.mktemp("chaos")
    with own_ray(), cluster.start(brokers=2, root=root, namespace=NAMESPACE) as started:
        yield started


@pytest.mark.parametrize(
    "actor",
    [
        "broker-a",
        pytest.param("name-server-0", marks=pytest.mark.long),
        pytest.param("scheduler", marks=pytest.mark.long),
        "producer:shared-chaos",
    ],
)
def test_killed_actor_loses_no_acknowledged_message(
    mq: Cluster, actor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = actor.split(":", maxsplit=1)[0].split("-", maxsplit=1)[0]
    topic = f"kill-{kind}"
    Admin(mq).create_topic(topic, queues=2)
    traffic = Traffic(topic, [Producer(mq, "direct-chaos"), Producer(mq, "shared-chaos", shared=True)])
    account = traffic.account
    with PushConsumer(mq, f"group-{kind}", {topic: "*"}, traffic.listener, batch_size=8, threads=4):
        traffic.start()
        poll_until(lambda: len(account.acknowledged) > BEFORE, 60, "messages before the kill")
        await_restart(actor, NAMESPACE, kill(actor, NAMESPACE))
        goal = len(account.acknowledged) + AFTER
        poll_until(lambda: len(account.acknowledged) > goal, 60, "messages after the kill")
        traffic.stop()
        poll_until(lambda: not account.lost, 60, "every acknowledged message arrives")
    with capsys.disabled():
        print(f"\n  {account.line(f'SIGKILL of {actor}')}", end="")
    assert account.lost == set()
    assert account.ghosts == set()
    assert account.failed_once, "no message was retried: the scheduler took no part"
