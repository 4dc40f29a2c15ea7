"""Test the console that a cluster serves itself, as an actor on a real Ray."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from click.testing import CliRunner

from raymq import cluster
from raymq.actors.naming import CONSOLE_NAME
from raymq.client import Admin, InvalidInput
from raymq.cluster.cli import main_group
from raymq.cluster.cluster_launch import names
from raymq.cluster.console_actor import TOKEN_FILE
from raymq.cluster.console_entry import find_console
from tests.console_client import ConsoleClient
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [pytest.mark.integration, pytest.mark.ray, pytest.mark.timeout(180)]

NAMESPACE = "with-console"
CONFIG = {"console": True, "console_port": 0, "console_allowed_hosts": ["mq.example.org"]}


@pytest.fixture(scope="module", autouse=True)
def running_ray() -> Iterator[None]:
    with own_ray():
        yield


def status(mq: cluster.Cluster) -> dict[str, object]:
    addresses = ";".join(mq.name_servers)
    result = CliRunner().invoke(main_group, ["--name-servers", addresses, "cluster", "status", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_console_runs_as_long_as_its_cluster(tmp_path: Path) -> None:
    with cluster.start(brokers=1, root=tmp_path, namespace=NAMESPACE, config=CONFIG) as mq:
        url = find_console(mq)
        assert url
        assert status(mq)["console"] == url
        token_file = tmp_path / TOKEN_FILE
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        Admin(mq).create_topic("orders", queues=1)
        client = ConsoleClient(url, token_file.read_text().strip())
        assert [client.get("/", Host=name).status for name in ("mq.example.org", "x.org")] == [200, 421]
        assert ConsoleClient(url).get("/", Host="mq.example.org").status == 401
        assert [each["topic"] for each in client.get_json("/topics")["topics"]] == ["orders"]
        assert client.post_json("/topics/orders/send", {"body": "x"})["message_id"]
        assert ConsoleClient(url).post("/topics/orders/send", {"body": "x"}).status == 401

        console = ray.get_actor(CONSOLE_NAME, namespace=NAMESPACE)
        before = ray.get(console.pid.remote())
        os.kill(before, signal.SIGKILL)
        poll_until(lambda: find_console(mq) != url, 60, "the restarted console has published its address")
        assert ray.get(console.pid.remote()) != before
        restarted = find_console(mq)
        assert restarted
        assert ConsoleClient(restarted, token_file.read_text().strip()).get("/topics/orders").status == 200

        cluster.start(brokers=1, root=tmp_path, namespace=NAMESPACE, config=CONFIG).close()
        with pytest.raises(InvalidInput, match="console"):
            cluster.start(brokers=1, root=tmp_path, namespace=NAMESPACE)
    assert names(NAMESPACE) == []

    with cluster.start(brokers=1, root=tmp_path, namespace=NAMESPACE) as mq:
        assert CONSOLE_NAME not in names(NAMESPACE)
        assert find_console(mq) is None
        assert "console" not in status(mq)


def test_start_with_a_taken_console_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = {"console": True, "console_port": taken.getsockname()[1]}
        with pytest.raises(InvalidInput) as caught:
            cluster.start(brokers=1, root=tmp_path, namespace="port-taken", config=config)
    assert caught.value.field == "console_port"
    poll_until(lambda: names("port-taken") == [], 30, "the actors of the refused start have ended")
