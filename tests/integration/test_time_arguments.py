"""Test that calls refuse milliseconds and naive datetimes and accept datetimes with a zone."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from raymq.client import Admin, Connection, InvalidInput, Message, MessageQueue, Producer, PullConsumer
from raymq.cluster.cli import main_group

pytestmark = pytest.mark.integration

MILLISECONDS = int(time.time() * 1_000)
QUEUE = MessageQueue("times", "broker-a", 0)


@pytest.fixture
def topic(mq: Connection, admin: Admin) -> None:
    admin.create_topic("times", queues=1)
    with PullConsumer(mq, "times") as consumer, Producer(mq, "p") as producer:
        sent = producer.send(Message("times", b"x", keys="k"), queue=QUEUE)
        consumer.commit(QUEUE, sent.queue_offset)


def test_milliseconds_and_naive_datetimes_are_refused(mq: Connection, admin: Admin, topic: None) -> None:
    committed = admin.group_progress("times")[QUEUE].committed_offset
    with PullConsumer(mq, "times") as consumer:
        calls: list[Callable[[Any], Any]] = [
            lambda at: admin.reset_offset_by_time("times", "times", at),
            lambda at: admin.query_by_key("times", "k", begin=at),
            lambda at: admin.query_by_key("times", "k", end=at),
            lambda at: consumer.seek_to_time(QUEUE, at),
        ]
        for call in calls:
            with pytest.raises(InvalidInput, match="this looks like milliseconds"):
                call(MILLISECONDS)
            with pytest.raises(InvalidInput, match="without a time zone"):
                call(datetime(2025, 11, 28))  # noqa: DTZ001
    assert admin.group_progress("times")[QUEUE].committed_offset == committed


def test_datetimes_with_zone_are_accepted(mq: Connection, admin: Admin, topic: None) -> None:
    now = datetime.now(UTC)
    end = admin.topic_stats("times")[QUEUE].max_offset
    assert admin.query_by_key("times", "k", now - timedelta(hours=1), now + timedelta(hours=1))
    assert admin.reset_offset_by_time("times", "times", now + timedelta(hours=1))[QUEUE] == end
    assert admin.reset_offset_by_time("times", "times", now - timedelta(hours=1))[QUEUE] == 0
    with PullConsumer(mq, "times") as consumer:
        consumer.seek_to_time(QUEUE, now + timedelta(hours=1))
        assert consumer.position(QUEUE) == end


def test_command_line_accepts_ages_and_shows_zone(mq: Connection, admin: Admin, topic: None) -> None:
    def run(*given: str) -> Any:
        return CliRunner().invoke(main_group, ["--name-servers", ";".join(mq.name_servers), *given])

    done = run("group", "reset", "times", "times", "--to", "2h", "--json")
    assert done.exit_code == 0
    assert '"offset": 0' in done.stdout
    assert "2h is 20" in done.stderr
    done = run("group", "reset", "times", "times", "--to", str(MILLISECONDS))
    assert done.exit_code != 0
    assert "seconds since 1970; this looks like milliseconds" in done.stderr
    year = time.strftime("%Y")
    assert run("message", "query", "times", "--key", "k", "--begin", "1h").stdout.count(f"store_timestamp    {year}-")
    assert run("message", "query", "times", "--key", "k", "--end", "1h").stdout.startswith("no message")
    assert f" {year}-" in run("topic", "stats", "times").stdout
