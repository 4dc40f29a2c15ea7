"""Test that a replica with a hanging disk answers, by waiting outside its event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from raymq.actors.broker.replica.replica_connection import ReplicaConnection
from raymq.actors.broker.replication.epoch_map import EpochMap
from raymq.actors.broker.replication.frame_bodies import Hello, encode_number, encode_states
from raymq.actors.broker.replication.reconciliation import StreamExtent
from raymq.actors.broker.replication.replication_frames import HEAD_BYTES, FrameKind, ReplicationFrame, read_head
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.storage.state.state_changes import FileChange, FileOperation, StateChange, is_rename

EPOCH = 3
RENAMED = FileChange(FileOperation.RENAMED, "config/topics.json.tmp", "config/topics.json").encode()
APPENDED = FileChange(FileOperation.APPENDED, "raymq/progress.journal", at=0, content=b"x").encode()


class HangingStream:
    """Model a replica's stream whose disk answers once `disk` is set."""

    def __init__(self) -> None:
        self.end = self.confirmed = BEGIN
        self.states = SimpleNamespace(last=1)  # an acknowledgement needs the last state sequence
        self.disk = threading.Event()
        self.began = threading.Event()
        self.done: list[tuple[bytes, bool]] = []

    @property
    def extent(self) -> StreamExtent:
        return StreamExtent(EpochMap(), self.end, self.end)

    def begin_connection(self) -> None:
        pass

    def waits_for_disk(self, changes: Sequence[StateChange]) -> bool:
        return any(is_rename(change.payload) for change in changes)

    def write_states(self, changes: Sequence[StateChange]) -> None:
        if self.waits_for_disk(changes):
            self.began.set()
            assert self.disk.wait(30)
        on_loop = threading.current_thread() is threading.main_thread()
        self.done += [(change.payload, on_loop) for change in changes]
        self.end = StreamPosition(0, changes[-1].sequence)

    def confirm(self, confirmed: StreamPosition) -> None:
        self.confirmed = confirmed


def frame(kind: FrameKind, position: StreamPosition, body: bytes = b"") -> bytes:
    return ReplicationFrame(kind, EPOCH, position, BEGIN, body).encode()


@pytest.mark.parametrize("payload", [FileChange(op, "a", "b").encode() for op in FileOperation])
def test_rename_is_recognised_by_its_first_bytes(payload: bytes) -> None:
    assert is_rename(payload) == (payload == FileChange(FileOperation.RENAMED, "a", "b").encode())


def test_event_loop_runs_while_rename_waits_for_disk() -> None:
    stream: Any = HangingStream()

    async def run() -> None:
        reached: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        server = await asyncio.start_server(lambda *ends: reached.put_nowait(ends), "127.0.0.1", 0)
        hello = Hello("c", "g", 2, "identity", "nonce", BEGIN, EpochMap())
        line = ReplicaConnection(stream, EPOCH, lambda: hello, lambda: 0, flushes=False)
        await line.connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
        reader, writer = await reached.get()

        async def received() -> ReplicationFrame:
            head = read_head(memoryview(await reader.readexactly(HEAD_BYTES)))
            body = await reader.readexactly(head.body_bytes)
            return ReplicationFrame(head.kind, head.epoch, head.position, head.confirmed, body)

        assert (await received()).kind is FrameKind.HELLO
        writer.write(frame(FrameKind.GO_ON, BEGIN, encode_number(0)))
        assert (await received()).kind is FrameKind.ACK
        for number, payload in enumerate((APPENDED, RENAMED, APPENDED), 1):
            states = encode_states([StateChange(number, 0, payload)])
            writer.write(frame(FrameKind.STATE, StreamPosition(0, number), states))
        assert (await received()).position.sequence == 1
        assert await asyncio.to_thread(stream.began.wait, 30)
        assert line.is_open, "the loop answers, and the connection goes on"
        assert [payload for payload, _ in stream.done] == [APPENDED]
        stream.disk.set()
        assert [(await received()).position.sequence for _ in range(2)] == [2, 3]
        assert stream.done == [(APPENDED, True), (RENAMED, False), (APPENDED, True)]
        await line.close()
        writer.close()
        server.close()

    asyncio.run(asyncio.wait_for(run(), 60))
