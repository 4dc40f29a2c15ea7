"""Test stopping a master while a replica still lacks part of the log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from raymq.actors.broker.replica.leadership import Leadership
from raymq.actors.broker.replication.epoch_file import EpochFile, EpochFileCache
from raymq.actors.broker.replication.epoch_map import EpochStart
from raymq.actors.broker.replication.frame_bodies import Hello
from raymq.actors.broker.replication.replication_frames import FrameKind, ReplicationFrame
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.keeper.group_state import GroupState, ReplicaRecord
from raymq.actors.keeper.keeper_messages import Registered
from raymq.actors.keeper.register import Register
from raymq.storage import directory_format
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from tests.state_shipping import keep_events
from tests.store_records import SMALL, append, make_record


class StalledTransport(asyncio.Transport):
    """Transmit nothing, as a connection whose peer has stopped reading."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


async def test_master_stop_succeeds_with_lagging_replica(tmp_path: Path) -> None:
    store = keep_events(Store.open(tmp_path, SMALL))
    journal = store.journal
    records = {each: ReplicaRecord(f"i{each}", f"127.0.0.1:{each}", f"n{each}") for each in (1, 2)}
    state = GroupState(master=1, epoch=1, in_sync=frozenset({1}), replicas=records)
    epochs = EpochFileCache(EpochFile(*StorePaths(tmp_path).master_epochs), BEGIN, StreamPosition(0, journal.last))
    epochs.begin(EpochStart(1, StreamPosition(0, journal.last)))
    begin = StreamPosition(0, journal.last)
    register = cast("Register", SimpleNamespace())
    leadership = Leadership("c", "g", 1, "n1", Registered(1, "", state), register, journal, epochs, begin, begin)
    leadership.lease.given(leadership.lease.ask(), 100.0)
    leadership.hold(store)
    leadership.start_replication(lambda _: None)
    append(store, *[make_record(b"x")] * 3)

    connection, transport = leadership.shipping.accept(), StalledTransport()
    connection.connection_made(transport)
    connection.pause_writing()
    hello = Hello("c", "g", 2, "i2", "n2", begin, epochs.map, known_format=directory_format.CURRENT_FORMAT)
    frame = ReplicationFrame(FrameKind.HELLO, 1, begin, BEGIN, hello.encode()).encode()
    connection.get_buffer(len(frame))[: len(frame)] = frame
    connection.buffer_updated(len(frame))
    assert leadership.shipping.connected() == {2}

    await leadership.finish()
    leadership.detach_store()
    store.close()
    connection.resume_writing()
    await leadership.finish()
    assert transport.aborted, "it says HELLO to the next master"
    leadership.leave()
