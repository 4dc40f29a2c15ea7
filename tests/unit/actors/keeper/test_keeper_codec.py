"""Test that states, messages and a keeper's file are bounded and checked when read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raymq.actors.keeper.group_state import MAX_EPOCH, MAX_STATE_BYTES, GroupState, ReplicationPolicy
from raymq.actors.keeper.keeper_codec import (
    MAX_MESSAGE_BYTES,
    decode_answer,
    decode_call,
    encode_answer,
    encode_call,
)
from raymq.actors.keeper.keeper_file import DurableKeeperFile
from raymq.actors.keeper.keeper_messages import (
    NOTHING,
    Accept,
    AcceptedBallot,
    Ballot,
    Inquire,
    KeeperCall,
    KeeperRefused,
    Keys,
    LeaseClaim,
    LeaseGiven,
    ListKeys,
    Prepare,
    Promised,
    Reason,
    Registered,
    Release,
    Released,
    Renew,
    Standing,
)
from raymq.actors.keeper.keeper_record import KeeperRecord, Slot
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.storage.errors import InvalidInput, StoreCorrupt, StoreFailed
from raymq.storage.files.file_calls import replaced
from tests.faulty_calls import FaultyCalls
from tests.unit.actors.keeper.in_memory_keepers import group, group_with_master

SET = KeeperSet(2, {1: KeeperMember("k1", "a"), 2: KeeperMember("k2", "b")}, {1: KeeperMember("k1", "a")})
ENTRY = Registered(3, "c3", group_with_master())
CLAIM = LeaseClaim(1, "n1", 1)
REQUESTS = [
    Prepare("g", Ballot(1, 1 << 61), moves=True),
    Accept("g", Ballot(1, 2), ENTRY),
    Accept("", Ballot(1, 2), Registered(1, "c", SET)),
    Inquire("g"),
    ListKeys(),
    Renew("g", CLAIM),
    Release("g", CLAIM),
]
ANSWERS = [
    Promised(Ballot(2, 2), Ballot(1, 1), ENTRY),
    Promised(Ballot(2, 2), Ballot(0, 0), NOTHING),
    AcceptedBallot(Ballot(1, 2)),
    Standing(Ballot(1, 2), Ballot(1, 2), ENTRY),
    Keys(("", "g")),
    LeaseGiven(2.0),
    Released(),
    KeeperRefused(Reason.OLD_SET, Ballot(1, 2), 0.5, SET),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_call_round_trips(request_: Any) -> None:
    call = KeeperCall(3, "made", request_)
    assert decode_call(encode_call(call)) == call


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda each: type(each).__name__)
def test_answer_round_trips(answer: Any) -> None:
    assert decode_answer(encode_answer(answer)) == answer


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 20_000,
        b'{"kind":"Nothing"}',
        b'{"set":1,"to":"a","kind":"Inquire"}',
        b'{"set":1,"to":"a","kind":"Inquire","key":7}',
        b'{"set":1,"to":"a","kind":"Inquire","key":"g","more":1}',
        b'{"set":-1,"to":"a","kind":"Inquire","key":"g"}',
        b'{"set":true,"to":"a","kind":"Inquire","key":"g"}',
        b'{"set":1,"to":"a","kind":"Inquire","key":"' + b"g" * 300 + b'"}',
        b'{"set":1,"to":"a","kind":"Prepare","key":"g","ballot":[1],"moves":true}',
        b'{"set":1,"to":"a","kind":"Prepare","key":"g","ballot":[1,1e999],"moves":true}',
        b'{"set":1,"to":"a","kind":"Renew","key":"g","claim":null}',
        b" " * (MAX_MESSAGE_BYTES + 1),
    ],
    ids=range(16),
)
def test_malformed_call_raises_invalid_input(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode_call(body)


@settings(max_examples=150)
@given(st.integers(0, len(REQUESTS) - 1), st.data())
def test_damaged_call_decodes_or_raises_invalid_input(which: int, data: st.DataObject) -> None:
    body = bytearray(encode_call(KeeperCall(3, "made", REQUESTS[which])))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode_call(bytes(body))
    except InvalidInput:
        return
    assert isinstance(read, KeeperCall)


def test_group_state_round_trips() -> None:
    assert GroupState.decode(group_with_master().encode()) == group_with_master()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("master", 3),
        ("master", "1"),
        ("epoch", -1),
        ("epoch", 1 << 31),
        ("epoch", True),
        ("inSync", [1, 7]),
        ("inSync", []),
        ("inSync", 1),
        ("setEpoch", None),
        ("lossEpoch", MAX_EPOCH),
        ("policy", {"mode": "later", "minInSync": 1}),
        ("policy", {"mode": "sync", "minInSync": 0}),
        ("replicas", {"0": {"identity": "a", "address": "b", "nonce": "c"}}),
        ("replicas", {"1": {"identity": "", "address": "b", "nonce": "c"}}),
        ("replicas", {"1": {"identity": "a" * 256, "address": "b", "nonce": "c"}}),
        ("replicas", {str(n): {"identity": "a", "address": "b", "nonce": "c"} for n in range(1, 18)}),
        ("replicas", []),
    ],
)
def test_invalid_group_state_raises_invalid_input(field: str, value: object) -> None:
    raw = json.loads(group_with_master().encode()) | {field: value}
    with pytest.raises(InvalidInput):
        GroupState.decode(json.dumps(raw).encode())


def test_oversized_group_state_raises_invalid_input() -> None:
    with pytest.raises(InvalidInput):
        GroupState.decode(b" " * (MAX_STATE_BYTES + 1))
    with pytest.raises(InvalidInput):
        GroupState.decode(b"[" * MAX_STATE_BYTES)


def test_group_state_transitions() -> None:
    state = group(3)
    start_election = state.start_election()
    assert (start_election.master, start_election.epoch, start_election.in_sync) == (None, 1, {1, 2, 3})
    elected = start_election.elected(2, [3])
    assert (elected.master, elected.epoch, elected.in_sync, elected.set_epoch) == (2, 1, {2, 3}, 1)
    assert elected.loss_epoch == 0
    unclean = elected.start_election().elected(3, [3], may_lack=True)
    assert (unclean.loss_epoch, unclean.start_election().elected(3, [3]).loss_epoch) == (2, 2)
    assert GroupState.decode(unclean.encode()) == unclean
    shrunk = elected.with_set([2])
    assert (shrunk.in_sync, shrunk.set_epoch) == ({2}, 2)
    assert shrunk.without_replica(1).replicas.keys() == {2, 3}
    first = GroupState(policy=ReplicationPolicy("sync")).with_replica(1, state.replicas[1])
    assert first.in_sync == {1}
    assert first.with_replica(2, state.replicas[2]).in_sync == {1}


# The keeper's file.

RECORD = KeeperRecord("c", 2, "made", SET, {"g": Slot(Ballot(4, 5), True, Ballot(3, 5), ENTRY)})


def test_keeper_record_round_trips(tmp_path: Path) -> None:
    file = DurableKeeperFile(tmp_path / "raymq" / "keeper")
    assert file.load() is None
    file.save(RECORD)
    assert file.load() == RECORD
    file.save(KeeperRecord("c", 2, "made"))
    assert file.load() == KeeperRecord("c", 2, "made")


def test_keeper_record_of_former_form_is_read() -> None:
    content = json.loads(RECORD.encode())
    for slot in content["slots"].values():
        slot["entry"]["kind"] = slot["entry"]["value"].pop("kind")
    content["keepers"].pop("kind")
    content["keys"] = content.pop("slots")
    assert KeeperRecord.decode(json.dumps(content, separators=(",", ":")).encode()) == RECORD


def test_keeper_record_with_a_slot_named_keys_is_read() -> None:
    record = replace(RECORD, slots={"keys": next(iter(RECORD.slots.values()))})
    assert KeeperRecord.decode(record.encode()) == record


def test_damaged_keeper_file_raises_store_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "keeper"
    file = DurableKeeperFile(path)
    file.save(RECORD)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at])
        with pytest.raises(StoreCorrupt):
            file.load()
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(StoreCorrupt):
            file.load()


def test_failed_fsync_raises_store_failed(tmp_path: Path) -> None:
    file = DurableKeeperFile(tmp_path / "keeper")
    file.save(RECORD)
    with replaced(FaultyCalls("fsync", 1, 5)), pytest.raises(StoreFailed):
        file.save(KeeperRecord("c", 2, "made"))
    assert file.load() == RECORD


def test_save_fsyncs_file_and_directory(tmp_path: Path) -> None:
    calls = FaultyCalls()
    with replaced(calls):
        DurableKeeperFile(tmp_path / "keeper").save(RECORD)
    assert calls.counts["fsync"] >= 2, "the file and its folder"
