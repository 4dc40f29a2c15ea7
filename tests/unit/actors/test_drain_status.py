"""Test draining a broker: it refuses new messages and reports what is left on it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.broker.core.broker_settings import broker_settings
from raymq.actors.broker.core.drain_status import DrainStatus
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.groups.consume_stats import ConsumeStats
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.errors import InvalidInput, PermissionDenied, ProtocolError
from raymq.actors.protocol import PERM_READ, PERM_WRITE
from raymq.actors.server_settings import ServerSettings
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.commands.drain_commands import (
    DrainBacklog,
    consumption_answer,
    consumption_command,
    drain_backlog_answer,
    drain_backlog_command,
    read_consumption,
    read_drain_backlog,
)
from raymq.actors.wire.response_validation import read_json_answer
from raymq.client import Message
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.tables.in_flight_messages import InFlightMessage
from tests.unit.actors.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.core.topics.create("t", 2)
    return made


def settings(bench: Bench) -> ServerSettings:
    return broker_settings(
        bench.core, cluster="c", address="127.0.0.1:1", name_servers=["127.0.0.1:2"], auto_create_topics=False
    )


def make_drain_status(bench: Bench) -> DrainStatus:
    groups = ClientRegistry(time.monotonic)
    return DrainStatus(bench.core, groups, ConsumeStats(bench.core, groups, Statistics()))


def test_read_only_broker_refuses_messages_and_announces_it(bench: Bench) -> None:
    reported = list[bool]()
    bench.core.topics.on_permission_change = lambda: reported.append(True)
    bench.append(Message("t", b"before"))
    assert bench.core.is_open(("t", 0))
    settings(bench).update({"brokerPermission": "4"})
    assert not bench.core.is_open(("t", 0)), "nor does what was looked at before let anything pass"
    with pytest.raises(PermissionDenied, match="may not be written"):
        bench.append(Message("t", b"after"))
    assert (bench.core.topics.advertised_queues()["t"].perm, reported) == (PERM_READ, [True])
    assert bench.core.topics.get("t").perm == PERM_READ | PERM_WRITE, "the topic's own is as it was"
    assert bench.bodies("t") == [b"before"]
    settings(bench).update({"brokerPermission": "6"})
    bench.append(Message("t", b"again"))
    assert bench.bodies("t") == [b"before", b"again"]


def test_broker_permission_survives_restart_and_bad_values(bench: Bench) -> None:
    settings(bench).update({"brokerPermission": "4"})
    bench.crash()
    assert bench.core.topics.permission == PERM_READ | PERM_WRITE
    kept = settings(bench)
    assert (kept.all()["brokerPermission"], bench.core.topics.permission) == ("4", PERM_READ)
    for value in ("0", "8", "rw", ""):
        with pytest.raises(InvalidInput, match="brokerPermission"):
            kept.update({"brokerPermission": value})
    assert bench.core.topics.permission == PERM_READ


def test_read_only_broker_delivers_delayed_messages(bench: Bench) -> None:
    bench.append(Message("t", b"later", delay_level=1), delayed=True)
    left = make_drain_status(bench)
    assert bench.core.schedule.waiting == 1
    settings(bench).update({"brokerPermission": "4"})
    bench.clock.now += 2
    bench.core.deliver_due()
    assert (bench.core.schedule.waiting, bench.bodies("t")) == (0, [b"later"])
    assert run_steps(left.unconsumed()) == {}, "nobody consumes it"


def test_unconsumed_messages_count_until_committed(bench: Bench) -> None:
    for number in range(5):
        bench.append(Message("t", b"%d" % number))
    left = make_drain_status(bench)
    bench.core.ensure_group("g")
    bench.core.offsets.commit("g", "t", 0, 2)
    assert run_steps(left.unconsumed()) == {("g", "t"): 3}
    bench.core.offsets.commit("g", "t", 0, 5)
    assert run_steps(left.unconsumed()) == {}


def test_consumed_topics_of_groups_are_reported(bench: Bench) -> None:
    bench.core.ensure_group("g")
    bench.core.ensure_group("idle")
    bench.core.offsets.commit("g", "t", 0, 0)
    bench.core.topics.create("%RETRY%g", 1)
    reported = run_steps(make_drain_status(bench).consumed())
    assert reported == {"g": ["t"]}
    answer = consumption_answer(consumption_command(), reported)
    assert read_consumption(answer) == {("g", "t")}
    of_an_earlier_version = drain_backlog_answer(drain_backlog_command(), DrainBacklog())
    assert read_consumption(of_an_earlier_version) == set()


def test_messages_above_high_watermark_count(bench: Bench) -> None:
    """Count messages that become readable with the next acknowledgement of the replicas."""
    bench.core.ensure_group("g")
    bench.core.offsets.commit("g", "t", 0, 0)
    bench.core.topics.create("%DLQ%g", 1)
    bench.append(Message("t", b"later", delay_level=1), delayed=True)
    bench.store.confirmed.hold(bench.store.max_physical_offset)
    settings(bench).update({"brokerPermission": "4"})
    left = make_drain_status(bench)
    bench.clock.now += 2
    bench.core.deliver_due()
    assert (bench.core.schedule.waiting, bench.bodies("t")) == (0, [])
    assert run_steps(left.unconsumed()) == {("g", "t"): 1}
    settings(bench).update({"brokerPermission": "6"})
    bench.append(Message("%DLQ%g", b"dead"))
    assert run_steps(left.dead_letters()) == {"g": 1}


def test_timer_counts_from_its_append_on(bench: Bench) -> None:
    """Count an acknowledged timer even before the first scan for due messages."""
    due = bench.clock.now + 60
    for number in range(3):
        bench.append(Message("t", b"%d" % number, deliver_at=due), delayed=True)
    assert run_steps(bench.core.timers.count_steps()) == 3
    bench.core.deliver_due()
    assert run_steps(bench.core.timers.count_steps()) == 3
    bench.append(Message("t", b"more", deliver_at=due), delayed=True)
    assert run_steps(bench.core.timers.count_steps()) == 4


def test_in_flight_messages_count_for_their_group(bench: Bench) -> None:
    for number in range(3):
        bench.append(Message("t", b"%d" % number))
    bench.store.in_flight.deliver(("g", "t", 0), 2, {0: InFlightMessage(1, 2, 0, 16), 1: InFlightMessage(1, 2, 0, 16)})
    bench.store.in_flight.deliver(("h", "t", 0), 1, {0: InFlightMessage(1, 2, 0, 16)})
    assert make_drain_status(bench).lent() == {"g": 2, "h": 1}


def test_timers_dead_letters_and_coordinators_count(bench: Bench) -> None:
    due_ms = int(bench.clock.now * 1000) + 60_000
    bench.append(Message("t", b"timer", deliver_at=due_ms / 1000), delayed=True)
    bench.core.deliver_due()
    assert run_steps(bench.core.timers.count_steps()) == 1
    left = make_drain_status(bench)
    assert (run_steps(left.dead_letters()), bench.core.coordinators.count_own(), left.lent()) == ({}, 0, {})
    bench.core.topics.create("%DLQ%g", 1)
    bench.append(Message("%DLQ%g", b"dead"))
    bench.core.coordinators.mark_discovered()
    bench.core.coordinators.remember("stream", "q", "broker-a")
    bench.core.coordinators.remember("stream", "r", "broker-z")
    assert (run_steps(left.dead_letters()), bench.core.coordinators.count_own()) == ({"g": 1}, 1)
    bench.clock.now += 61
    bench.core.deliver_due()
    assert run_steps(bench.core.timers.count_steps()) == 0


def test_drain_backlog_round_trips_and_is_validated() -> None:
    reported = DrainBacklog({("g", "t"): 3}, 4, 1, 2, 3, 4, 5, 6, {"g": 7}, {"g": 2})
    assert read_drain_backlog(drain_backlog_answer(drain_backlog_command(), reported)) == reported
    older = read_json_answer(drain_backlog_answer(drain_backlog_command(), reported))
    del older["lent_to"]
    assert read_drain_backlog(json_body.answer(drain_backlog_command(), older)) == replace(reported, lent_to={})
    with pytest.raises(ProtocolError):
        read_drain_backlog(drain_backlog_command().response(ResponseCode.SUCCESS, body=b'{"unconsumed": 3}'))
