"""Test the request modes of groups, and that RocketMQ's file of them is read and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput, StoreError
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.tables import request_mode
from raymq.storage.tables.request_mode import POP, PULL, RequestMode, RequestModes
from tests.faulty_calls import FaultyCalls
from tests.state_journals import open_table, open_tables
from tests.store_records import SMALL


def test_request_modes_survive_a_restart(tmp_path: Path) -> None:
    journal = open_tables(tmp_path, modes := RequestModes())
    assert modes.get("t", "g").mode == PULL
    modes.put(RequestMode("t", "g", POP, 8))
    modes.put(RequestMode("t", "h", POP))
    modes.put(RequestMode("t", "h", PULL))
    for compact in (False, True):
        journal.close(compact=compact)
        journal = open_tables(tmp_path, again := RequestModes())
        assert [again.get("t", group) for group in "gh"] == [RequestMode("t", "g", POP, 8), RequestMode("t", "h")]


def test_request_modes_are_exchanged_with_rocketmq(tmp_path: Path) -> None:
    path = tmp_path / "config" / "messageRequestMode.json"
    with Store.open(tmp_path, SMALL) as store:
        store.request_modes.put(RequestMode("t", "g", POP, 8))
        store.request_modes.put(RequestMode("t", "h", POP))
    content = json.loads(path.read_text())
    assert content["messageRequestModeMap"]["t"]["g"] == {
        "topic": "t",
        "consumerGroup": "g",
        "mode": "POP",
        "popShareQueueNum": 8,
    }
    del content["raymqCrc"], content["messageRequestModeMap"]["t"]["h"]
    content["messageRequestModeMap"]["t"]["g"]["popShareQueueNum"] = 9
    path.write_text(json.dumps(content))  # as RocketMQ writes it
    for _ in range(2):
        with Store.open(tmp_path, SMALL) as store:
            assert store.request_modes.get("t", "g") == RequestMode("t", "g", POP, 9)
            assert store.request_modes.get("t", "h") == RequestMode("t", "h")


def test_read_only_request_modes_refuse_changes(tmp_path: Path) -> None:
    modes = open_table(tmp_path, RequestModes(), writable=False)
    with pytest.raises(StoreError):
        modes.put(RequestMode("t", "g", POP))
    assert modes.get("t", "g").mode == PULL
    with pytest.raises(StoreError):
        modes.put(RequestMode("t", "g"))


def test_request_modes_are_limited_without_counting_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Any client may set modes: with 100,000 of them each further one rewrote the file in a second of the event loop.
    monkeypatch.setattr(request_mode, "MAX_MODES", 3)
    modes = open_table(tmp_path, RequestModes())
    for number in range(10):
        modes.put(RequestMode("t", f"pull{number}"))
    for number in range(3):
        modes.put(RequestMode("t", f"g{number}", POP))
    with pytest.raises(InvalidInput, match="at most 3 groups"):
        modes.put(RequestMode("u", "g", POP))
    modes.put(RequestMode("t", "g0", POP, 5))
    modes.put(RequestMode("t", "g1"))
    modes.put(RequestMode("u", "g", POP))
    again = open_table(tmp_path, RequestModes())
    found = {key: again.get(*key) for key in (("t", "g0"), ("t", "g1"), ("t", "g2"), ("u", "g"))}
    assert [each.mode for each in found.values()] == [POP, PULL, POP, POP]
    assert found["t", "g0"].pop_share_queues == 5
    monkeypatch.setattr(request_mode, "MAX_MODES", 1)
    again.put(RequestMode("t", "g2", POP, 1))  # above the limit, but no mode is added


def test_number_of_shared_queues_is_a_java_int(tmp_path: Path) -> None:
    # A larger one could not be written, and the client saw no InvalidInput.
    modes = open_table(tmp_path, RequestModes())
    for number in (1 << 31, -(1 << 31) - 1, 10**400):
        with pytest.raises(InvalidInput, match="popShareQueueNum"):
            modes.put(RequestMode("t", "g", POP, number))
    modes.put(RequestMode("t", "g", POP, (1 << 31) - 1))
    modes.put(RequestMode("t", "h", POP, -(1 << 31)))
    again = open_table(tmp_path, RequestModes())
    assert [again.get("t", group).pop_share_queues for group in "gh"] == [(1 << 31) - 1, -(1 << 31)]


def test_adding_a_mode_writes_only_the_new_mode(tmp_path: Path) -> None:
    modes = open_table(tmp_path, RequestModes())
    for number in range(20):
        modes.put(RequestMode("t", f"g{number}", POP))
    folder = tmp_path / "raymq" / "state"
    before = sum(path.stat().st_size for path in folder.iterdir())
    with replaced(calls := FaultyCalls()):
        modes.put(RequestMode("t", "one more", POP))
    assert (calls.counts["write"], calls.counts["fdatasync"], calls.counts["rename"]) == (1, 1, 0)
    assert sum(path.stat().st_size for path in folder.iterdir()) - before < 50
