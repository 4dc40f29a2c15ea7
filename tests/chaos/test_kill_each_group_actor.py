"""Call ray.kill for each kind of actor of a group of two replicas: no message is lost, and each actor restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray

from tests.chaos.actors import await_restart, pid_of
from tests.chaos.replicated_on_ray import NAMESPACE, GroupOnRay
from tests.ray_cluster import own_ray

pytestmark = [
    pytest.mark.ray,
    pytest.mark.chaos,
    pytest.mark.filterwarnings("ignore:2 replicas of each broker group share"),
]

KINDS = ("broker-a", "broker-a.1", "keeper-1", "coordinator", "name-server-0", "scheduler")


@pytest.mark.long
def test_ray_kill_of_group_actors_loses_no_message(tmp_path: Path) -> None:
    with own_ray(), GroupOnRay(tmp_path / "data") as group:
        for actor in KINDS:
            before = pid_of(actor, NAMESPACE)
            ray.kill(ray.get_actor(actor, namespace=NAMESPACE), no_restart=False)
            await_restart(actor, NAMESPACE, before)
            group.await_sent(50)
            group.await_in_sync()
        group.await_all()
