"""Test SEAL and REPLICA_STATUS on the wire: round trips, and refusal of malformed values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raymq.actors.errors import InvalidInput, ProtocolError
from raymq.actors.wire.commands.replication_commands import (
    FenceReply,
    ReplicaLag,
    ReplicaStatus,
    fence_answer,
    fence_command,
    read_fence,
    read_fence_reply,
    read_replica_status,
    replica_status_answer,
    replica_status_command,
)
from raymq.actors.wire.frame import Command, decode, encode

FENCE_REPLY = FenceReply(2, "dir-2", "nonce", 7, 6, (4096, 90), False, True, 100, True)
STATUS = ReplicaStatus(
    replica=1,
    role="master",
    identity="dir-1",
    nonce="nonce",
    pid=17,
    serves=True,
    fenced=7,
    epoch=7,
    master=1,
    master_epoch=7,
    address="10.0.0.1:10911",
    replication_address="10.0.0.1:10912",
    begin=(0, 3),
    end=(4096, 90),
    confirmed=(4000, 88),
    in_sync=(1, 2),
    set_epoch=12,
    reaches_keepers=True,
    lags={2: ReplicaLag(96, 2, True)},
)


def send_over_wire(command: Command) -> Command:
    return decode(encode(command)[4:])


def test_fence_command_and_reply_round_trip() -> None:
    request = send_over_wire(fence_command(7))
    assert read_fence(request) == 7
    assert read_fence_reply(send_over_wire(fence_answer(request, FENCE_REPLY))) == FENCE_REPLY


@pytest.mark.parametrize("master", [1, None])
def test_replica_status_round_trips(master: int | None) -> None:
    status = replace(STATUS, master=master)
    request = send_over_wire(replica_status_command())
    assert read_replica_status(send_over_wire(replica_status_answer(request, status))) == status


@pytest.mark.parametrize("epoch", [None, -1, 1 << 31, "7", True, 1.0])
def test_invalid_epoch_raises_invalid_input(epoch: object) -> None:
    request = fence_command(1)
    request.fields["epoch"] = epoch
    with pytest.raises(InvalidInput):
        read_fence(request)


@pytest.mark.parametrize(
    ("name", "value"),
    [("end", [1]), ("end", [-1, 0]), ("healthy", 1), ("replica", 0), ("nonce", None), ("sealed", 1 << 64)],
)
def test_malformed_fence_reply_raises_protocol_error(name: str, value: object) -> None:
    answer = fence_answer(fence_command(7), FENCE_REPLY)
    answer.fields[name] = value
    with pytest.raises(ProtocolError):
        read_fence_reply(answer)


@pytest.mark.parametrize(
    ("name", "value"), [("in_sync", list(range(1, 100))), ("lags", [[1, 2]]), ("master", 0), ("begin", "ab")]
)
def test_malformed_replica_status_raises_protocol_error(name: str, value: object) -> None:
    answer = replica_status_answer(replica_status_command(), STATUS)
    answer.fields[name] = value
    with pytest.raises(ProtocolError):
        read_replica_status(answer)
