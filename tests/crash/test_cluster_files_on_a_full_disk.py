"""Test that a cluster's own files do not prevent its start on a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.actors.errors import StoreFull
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.keeper.keeper_file import DurableKeeperFile
from raymq.actors.keeper.keeper_messages import Ballot
from raymq.actors.keeper.keeper_record import KeeperRecord, Slot
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import NameServerSpec
from raymq.cluster.replica_placement import place_replicas
from raymq.storage.files import json_file
from raymq.storage.files.file_calls import replaced
from tests.full_disk import FullDisk
from tests.polling import poll_until

pytestmark = pytest.mark.crash

HOSTS = ["raymq_host"]


def test_unchanged_replica_layout_needs_no_disk_space(tmp_path: Path) -> None:
    """Guard against fault 13.25: the start failed here, before a broker could free space."""
    placed = place_replicas(tmp_path, 2, 1, HOSTS)
    with replaced(FullDisk(0)):
        assert place_replicas(tmp_path, 2, 1, HOSTS) == placed
        with pytest.raises(StoreFull):
            place_replicas(tmp_path, 3, 1, HOSTS)


def test_name_server_restarts_on_full_disk(tmp_path: Path, loop: EventLoopThread) -> None:
    def start(start_id: str) -> NameServerService:
        spec = NameServerSpec(0, str(tmp_path), "127.0.0.1", 0, start_id=start_id)
        return loop.run(NameServerService.start(spec))

    async def finish(server: NameServerService) -> None:
        server.finish()

    first = start("one")
    loop.run(finish(first))
    address = first.address
    loop.run(first.stop())
    disk = FullDisk(0)
    with replaced(disk):
        second = start("two")
        try:
            assert second.address == address
            assert not second.is_finished
            loop.run(finish(second))
            assert second.is_finished
            file = tmp_path / "name-server-0.json"
            assert json_file.load(file)["finished"] == "one"
            disk.free_bytes = 1 << 20
            poll_until(lambda: json_file.load(file)["finished"] == "two")
        finally:
            loop.run(second.stop())


def test_keeper_saves_promises_on_full_disk(tmp_path: Path) -> None:
    """Without a majority of keepers no master is elected to replace a killed broker."""
    file = DurableKeeperFile(tmp_path / "keeper-1")
    record = KeeperRecord("c", 1, "incarnation", KeeperSet(1, {1: KeeperMember("127.0.0.1:1", "incarnation")}))
    file.save(record)
    assert DurableKeeperFile(tmp_path / "keeper-1").load() == record
    with replaced(FullDisk(0)):
        for number in range(5):
            record = record.with_slot(f"broker-{number}", Slot(promised=Ballot(number, 1)))
            file.save(record)
            assert DurableKeeperFile(tmp_path / "keeper-1").load() == record
