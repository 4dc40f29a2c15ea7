"""Test that a broker sends only changed topics to the name servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from raymq.actors.broker.name_server_registration import NameServerRegistration
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import NameServerSpec, QueueData
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.storage.files.json_file import DataVersion
from tests.unit.actors.bench import Bench


class CountingTopics:
    """Wrap the topics of a core, and count full reads and reported changes."""

    def __init__(self, bench: Bench) -> None:
        self._topics = bench.core.topics
        self.all = self.changes = 0

    @property
    def version(self) -> DataVersion:
        return self._topics.version

    def advertised_queues(self) -> dict[str, QueueData]:
        self.all += 1
        return self._topics.advertised_queues()

    def changed_since(self, version: DataVersion) -> dict[str, QueueData | None] | None:
        changed = self._topics.changed_since(version)
        self.changes += len(changed or ())
        return changed


@asynccontextmanager
async def run_registration(
    bench: Bench, tmp_path: Path
) -> AsyncIterator[tuple[NameServerService, NameServerRegistration, CountingTopics]]:
    server = await NameServerService.start(NameServerSpec(0, str(tmp_path), "127.0.0.1", 0))
    pool, topics = ConnectionPool(), CountingTopics(bench)
    try:
        yield server, NameServerRegistration(pool, [server.address], "c", "broker-a", "127.0.0.1:1", topics), topics
    finally:
        await pool.close()
        await server.stop()


async def test_topic_change_is_sent_without_reading_all_topics(bench: Bench, tmp_path: Path) -> None:
    """Guard against three scans of 10,000 topics for each new topic."""
    for number in range(1_200):  # more than go into one step
        bench.core.topics.create(f"t{number}", 1)
    async with run_registration(bench, tmp_path) as (server, registration, topics):
        await registration.announce()
        assert sorted(server.table.topics()) == sorted(bench.core.topics.all())
        bench.core.topics.create("new", 3)
        bench.core.topics.delete("t7")
        await registration.announce()
        await registration.announce()
        assert sorted(server.table.topics()) == sorted(bench.core.topics.all())
        assert server.table.route("new").queues == (QueueData("broker-a", 3, 3, 6),)
        assert topics.all == 1
        assert topics.changes == 2


async def test_name_server_with_other_version_gets_all_topics(bench: Bench, tmp_path: Path) -> None:
    bench.core.topics.create("t", 1)
    async with run_registration(bench, tmp_path) as (server, registration, topics):
        await registration.announce()
        server.table.unregister("broker-a", 0)
        bench.core.topics.create("new", 1)
        await registration.announce()
        assert sorted(server.table.topics()) == sorted(bench.core.topics.all())
        assert topics.all == 2


async def test_permission_change_sends_all_topics(bench: Bench, tmp_path: Path) -> None:
    bench.core.topics.create("t", 1)
    async with run_registration(bench, tmp_path) as (server, registration, topics):
        bench.core.topics.on_permission_change = registration.invalidate
        await registration.announce()
        bench.core.topics.set_permission(4)
        await registration.announce()
        assert (server.table.route("t").queues, topics.all) == ((QueueData("broker-a", 1, 1, 4),), 2)
        server.table.unregister("broker-a", 0)
        telling = registration.announce()
        bench.core.topics.set_permission(6)
        await telling
        await registration.announce()
        assert server.table.route("t").queues == (QueueData("broker-a", 1, 1, 6),)
