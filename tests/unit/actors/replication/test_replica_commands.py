"""SEAL and REPLICA_STATUS over the wire's own forms: what goes out comes in, and nothing else is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raymq.actors.errors import InvalidInput, ProtocolError
from raymq.actors.wire.commands.replication import (
    ReplicaLag,
    ReplicaStatus,
    Sealed,
    read_replica_status,
    read_seal,
    read_sealed,
    replica_status_answer,
    replica_status_command,
    seal_command,
    sealed_answer,
)
from raymq.actors.wire.frame import Command, decode, encode

SEALED = Sealed(2, "dir-2", "nonce", 7, 6, (4096, 90), False, True, 100, True)
STATUS = ReplicaStatus(
    replica=1,
    role="master",
    identity="dir-1",
    nonce="nonce",
    pid=17,
    serves=True,
    sealed=7,
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


def over_the_wire(command: Command) -> Command:
    return decode(encode(command)[4:])


def test_a_seal_and_its_answer_come_as_they_went() -> None:
    request = over_the_wire(seal_command(7))
    assert read_seal(request) == 7
    assert read_sealed(over_the_wire(sealed_answer(request, SEALED))) == SEALED


@pytest.mark.parametrize("master", [1, None])
def test_a_status_comes_as_it_went(master: int | None) -> None:
    status = replace(STATUS, master=master)
    request = over_the_wire(replica_status_command())
    assert read_replica_status(over_the_wire(replica_status_answer(request, status))) == status


@pytest.mark.parametrize("epoch", [None, -1, 1 << 31, "7", True, 1.0])
def test_what_is_no_epoch_seals_nothing(epoch: object) -> None:
    request = seal_command(1)
    request.fields["epoch"] = epoch
    with pytest.raises(InvalidInput):
        read_seal(request)


@pytest.mark.parametrize(
    ("name", "value"),
    [("end", [1]), ("end", [-1, 0]), ("healthy", 1), ("replica", 0), ("nonce", None), ("sealed", 1 << 64)],
)
def test_an_answer_of_another_form_is_no_answer(name: str, value: object) -> None:
    answer = sealed_answer(seal_command(7), SEALED)
    answer.fields[name] = value
    with pytest.raises(ProtocolError):
        read_sealed(answer)


@pytest.mark.parametrize(
    ("name", "value"), [("in_sync", list(range(1, 100))), ("lags", [[1, 2]]), ("master", 0), ("begin", "ab")]
)
def test_a_status_of_another_form_is_none(name: str, value: object) -> None:
    answer = replica_status_answer(replica_status_command(), STATUS)
    answer.fields[name] = value
    with pytest.raises(ProtocolError):
        read_replica_status(answer)
