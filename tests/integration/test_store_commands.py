"""Test `raymq store inspect` and `raymq store dump` on running and stopped stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer, SimpleConsumer
from raymq.cluster.cli import main_group
from tests.integration.conftest import Services

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)


def run(*line: str) -> Any:
    return CliRunner().invoke(main_group, ["store", *line])


def dumped(*line: str) -> list[dict[str, Any]]:
    done = run("dump", *line, "--json")
    assert done.exit_code == 0, done.output
    return [json.loads(each) for each in done.stdout.splitlines()]


@pytest.fixture
def store(services: Services, mq: Connection, admin: Admin) -> Path:
    admin.create_topic("other", queues=1)
    with Producer(mq, "p") as producer:
        sent = [producer.send(Message("t", b'{"n": %d}' % number, keys="k"), queue=QUEUE) for number in range(40)]
        producer.send(Message("other", b"\xff"), queue=MessageQueue("other", "broker-a", 0))
    assert sent[-1].queue_offset == 39
    with PullConsumer(mq, "g") as pull, SimpleConsumer(mq, "pop", {"t": "*"}) as simple:
        pull.commit(QUEUE, 7)
        simple.receive(3, 30.0)
    return services.directory / "broker-a"


def files_of(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.rglob("*") if path.is_file()
    }


def test_inspect_running_and_stopped_store(store: Path, services: Services) -> None:
    found = json.loads(run("inspect", str(store), "--json").stdout)
    assert (found["format"], found["clean"]) == (3, None)
    assert found["pid"] is not None
    assert found["broker"]["name"] == "broker-a"
    assert {"topic": "t", "queue_id": 0, "min_offset": 0, "max_offset": 40} in found["queues"]
    rows = {each["table"]: each["rows"] for each in found["tables"]}
    assert rows["consumer_offsets"] >= 1
    assert rows["topics"] > 2
    assert rows["in_flight"] >= 1
    assert found["log_end"] > found["log_begin"] == 0
    assert any(each["folder"] == "commitlog" and each["files"] >= 1 for each in found["folders"])
    services.stop_broker("broker-a")
    before = files_of(store)
    found = json.loads(run("inspect", str(store), "--json").stdout)
    assert (found["clean"], found["pid"], found["truncated_bytes"]) == (True, None, 0)
    shown = run("inspect", str(store)).stdout
    assert "broker-a of test" in shown
    assert "consumer_offsets" in shown
    assert len(dumped(str(store))) >= 41
    assert files_of(store) == before


def test_dump_selects_messages(store: Path) -> None:
    found = dumped(str(store), "--topic", "t", "--queue", "0")
    assert [each["queue_offset"] for each in found] == list(range(40))
    assert found[7]["body"] == '{"n": 7}'
    assert found[7]["queue"] == {"topic": "t", "broker": "broker-a", "queue_id": 0}
    selected = dumped(str(store), "--topic", "t", "--from", "35", "--limit", "3")
    assert [each["queue_offset"] for each in selected] == [35, 36, 37]
    assert dumped(str(store), "--topic", "other")[0]["body_base64"] == "/w=="
    assert '{"n": 39}' in run("dump", str(store), "--topic", "t", "--from", "39").stdout
    assert dumped(str(store), "--topic", "t", "--queue", "9") == []
    assert run("dump", str(store), "--topic", "none").exit_code == 1
    assert run("dump", str(store.parent / "none")).exit_code == 1
    assert run("inspect", str(store.parent / "none")).exit_code == 1


def test_dump_names_damaged_messages(store: Path, services: Services) -> None:
    services.stop_broker("broker-a")
    (log,) = [path for path in sorted((store / "commitlog").iterdir()) if path.name == "0" * 20]
    content = log.read_bytes()
    with log.open("r+b") as stream:
        stream.seek(content.index(b'{"n": 3}'))
        stream.write(b'{"n": X}')
    done = run("dump", str(store), "--topic", "t", "--json")
    assert done.exit_code == 1
    assert "damaged: t queue 0 offset 3" in done.stderr
    assert len(done.stdout.splitlines()) == 39
