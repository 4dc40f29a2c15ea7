"""Test docs/stories.md: what is wrong with a broker is found by the commands alone, and by the console alone."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raymq.client import Admin, Connection, ConsumeResult, Message, MessageQueue, NotStored, Producer, PushConsumer
from raymq.cluster.cli import main_group
from raymq.console.console_server import ConsoleSettings
from tests.console_client import ConsoleClient
from tests.console_thread import running_console
from tests.integration.conftest import Services
from tests.integration.shell import Shell
from tests.polling import poll_until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("admin")]

QUEUE, OTHER = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-b", 0)
#: By how much the clock of broker-b is behind.
BEHIND_SECONDS = 90.0


@pytest.fixture
def console(mq: Connection) -> Iterator[ConsoleClient]:
    with running_console(mq, ConsoleSettings()) as url:
        yield ConsoleClient(url)


def run(mq: Connection, *arguments: str) -> Result:
    return CliRunner().invoke(main_group, ["--name-servers", ";".join(mq.name_servers), *arguments])


def doctor(mq: Connection) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code of the doctor, and its findings about the cluster."""
    done = run(mq, "doctor", "--no-ray", "--json")
    return done.exit_code, json.loads(done.stdout)


def findings(mq: Connection, check: str, severity: str) -> dict[str, dict[str, Any]]:
    """Return the findings of one check by their places."""
    _, found = doctor(mq)
    return {each["where"]: each for each in found if (each["check"], each["severity"]) == (check, severity)}


def brokers(console: ConsoleClient) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in console.get_json("/")["brokers"]}


def state(console: ConsoleClient, broker: str) -> str | None:
    return brokers(console).get(broker, {}).get("state")


def refusals(console: ConsoleClient, broker: str) -> dict[str, int]:
    return dict(brokers(console).get(broker, {}).get("refusals", {}))


class FilledDisk:
    """Reports a disk that is used to 91 % until `free` is called."""

    def __init__(self) -> None:
        self._real = shutil.disk_usage
        self._full = True

    def free(self) -> None:
        self._full = False

    def __call__(self, path: str | Path) -> Any:
        usage = self._real(path)
        used = int(usage.total * (0.91 if self._full else 0.5))
        return type(usage)(usage.total, used, usage.total - used)


def test_full_disk_refuses_messages(
    shell: Shell, mq: Connection, console: ConsoleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FilledDisk()
    monkeypatch.setattr(shutil, "disk_usage", disk)

    def refused() -> bool:
        done = run(mq, "message", "send", "t", "--body", "x")
        return done.exit_code == 1 and "the disk is 91.0% full, writes end at 90.0%" in str(done.exception)

    poll_until(refused, 20, "a refusal")  # a broker looks at its disk once in a while
    rows = shell.json("broker", "list")
    assert [round(row["disk_ratio"], 2) for row in rows] == [0.91, 0.91]
    assert all(row["refusals"]["disk_full"] for row in rows)
    assert "disk_full" in shell.shown("broker", "list")
    code, _ = doctor(mq)
    assert code == 1
    assert {"broker-a", "broker-b"} <= findings(mq, "disk room", "problem").keys()
    assert findings(mq, "refusals", "note")["broker-a"]["remedy"].startswith("make room on its disk")

    poll_until(lambda: "disk_full" in refusals(console, "broker-a"), 20, "the next sample")
    page = console.get("/").text
    assert "Messages refused since its start" in page
    assert "disk_full" in page
    assert "91" in page

    disk.free()
    poll_until(lambda: not run(mq, "message", "send", "t", "--body", "x").exit_code, 20, "the broker goes on")


def test_gone_broker_is_unreachable_everywhere(
    services: Services, shell: Shell, mq: Connection, admin: Admin, console: ConsoleClient
) -> None:
    with Producer(mq, "p") as producer:
        for queue in (QUEUE, OTHER):
            producer.send(Message("t", b"x"), queue=queue)

    def caught_up() -> bool:
        lags = {queue: each.lag for queue, each in admin.group_progress("g").items()}
        return lags.get(QUEUE) == lags.get(OTHER) == 0

    with PushConsumer(mq, "g", {"t": "*"}, lambda _: ConsumeResult.SUCCESS):
        poll_until(lambda: "g" in admin.groups() and caught_up(), 20)
    services.crash_broker("broker-b")
    poll_until(lambda: "broker-b" in mq.run(mq.routes.cluster()).left, 20, "it leaves the routes")

    # Each command is a new client, which has never seen the broker.
    states = {row["name"]: row["state"] for row in shell.json("cluster", "status")["brokers"]}
    assert states == {"broker-a": "running", "broker-b": "unreachable"}
    assert "unreachable" in shell.shown("broker", "list")
    assert "0.0%" not in shell.shown("broker", "list"), "unknown is not zero"
    assert run(mq, "health").exit_code == 1
    assert "broker-b does not answer" in findings(mq, "sockets", "problem")["broker-b"]["found"]
    with Connection(mq.name_servers) as new:
        progress = Admin(new).group_progress("g")
    assert (progress[QUEUE].lag, progress[OTHER].lag) == (0, None)
    assert "at least 0" in shell.shown("group", "progress", "g")
    assert "broker not reachable: broker-b" in shell.json("group", "why", "g")["verdict"]

    poll_until(lambda: state(console, "broker-b") == "unreachable", 20, "the next sample")
    assert "Not reachable: broker-b" in console.get("/").text
    assert "broker not reachable: broker-b" in console.get_json("/groups/g/why")["verdict"]

    services.start_broker("broker-b")
    poll_until(lambda: run(mq, "health").exit_code == 0, 20)
    poll_until(lambda: state(console, "broker-b") == "running", 20)


def test_clock_of_a_broker_differs(services: Services, mq: Connection, console: ConsoleClient) -> None:
    behind = services.brokers["broker-b"]
    behind.core.clock = lambda: time.time() - BEHIND_SECONDS
    behind.store._writer._now_ms = lambda: int((time.time() - BEHIND_SECONDS) * 1000)

    found = findings(mq, "clocks", "problem")
    assert found.keys() == {"broker-b"}
    assert "its clock differs by -90." in found["broker-b"]["found"]
    assert "NTP" in found["broker-b"]["remedy"]
    assert doctor(mq)[0] == 1
    assert findings(mq, "clocks", "fine").keys() == {"broker-a"}

    with Producer(mq, "p") as producer:
        late, right = (producer.send(Message("t", b"x"), queue=queue) for queue in (OTHER, QUEUE))
    message = console.get_json(f"/messages/{late.message_id}")
    assert message["born_ahead"] == pytest.approx(BEHIND_SECONDS, abs=5.0)
    assert "clock is ahead of the broker" in console.get(f"/messages/{late.message_id}").text
    assert console.get_json(f"/messages/{right.message_id}")["born_ahead"] is None


def test_sends_fail_because_a_broker_is_overloaded(
    services: Services, shell: Shell, mq: Connection, console: ConsoleClient
) -> None:
    admission = services.brokers["broker-a"].core.admission
    admission.limits = type(admission.limits)(appends_under_way=1)
    admission.enter(1)  # an append that waits for the disk
    try:
        with Producer(mq, "p", timeout=1.0) as producer, pytest.raises(NotStored) as caught:
            producer.send(Message("t", b"x"), queue=QUEUE, retries=0)
        assert [each.broker for each in caught.value.attempts] == ["broker-a"]
        assert caught.value.attempts[0].code == "SYSTEM_BUSY"
        by_name = {row["name"]: row["refusals"] for row in shell.json("cluster", "status")["brokers"]}
        assert by_name == {"broker-a": {"appends_under_way": 1}, "broker-b": {}}
        assert "appends_under_way 1" in shell.shown("broker", "list")

        poll_until(lambda: refusals(console, "broker-a"), 20, "the next sample")
        page = console.get("/").text
        assert "Messages refused since its start" in page
        assert "appends_under_way" in page
    finally:
        admission.leave(1)
    done = shell.json("bench", "produce", "--topic", "t", "--seconds", "0.1")
    assert done["latency"]["p99"] > 0
    assert "topic none does not exist" in str(run(mq, "message", "send", "none", "--body", "x").exception)
