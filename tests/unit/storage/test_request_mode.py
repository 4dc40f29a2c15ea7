"""Test that RocketMQ's file of request modes is read and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput, StoreError
from raymq.storage.files import json_file
from raymq.storage.tables import request_mode
from raymq.storage.tables.request_mode import POP, PULL, RequestMode, RequestModes


def test_request_modes_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "config" / "messageRequestMode.json"
    modes = RequestModes(path, writable=True)
    assert modes.get("t", "g").mode == PULL
    modes.put(RequestMode("t", "g", POP, 8))
    modes.put(RequestMode("t", "h", POP))
    modes.put(RequestMode("t", "h", PULL))
    again = RequestModes(path, writable=True)
    assert [again.get("t", group) for group in "gh"] == [RequestMode("t", "g", POP, 8), RequestMode("t", "h")]
    assert json.loads(path.read_text())["messageRequestModeMap"]["t"]["g"] == {
        "topic": "t",
        "consumerGroup": "g",
        "mode": "POP",
        "popShareQueueNum": 8,
    }


def test_read_only_request_modes_refuse_changes(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        RequestModes(tmp_path / "messageRequestMode.json", writable=False).put(RequestMode("t", "g"))


def test_request_modes_are_limited_without_counting_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Any client may set modes: with 100,000 of them each further one rewrote the file in a second of the event loop.
    monkeypatch.setattr(request_mode, "MAX_MODES", 3)
    modes = RequestModes(tmp_path / "m.json", writable=True)
    for number in range(10):
        modes.put(RequestMode("t", f"pull{number}"))
    for number in range(3):
        modes.put(RequestMode("t", f"g{number}", POP))
    with pytest.raises(InvalidInput, match="at most 3 groups"):
        modes.put(RequestMode("u", "g", POP))
    modes.put(RequestMode("t", "g0", POP, 5))
    modes.put(RequestMode("t", "g1"))
    modes.put(RequestMode("u", "g", POP))
    again = RequestModes(tmp_path / "m.json", writable=True)
    found = {key: again.get(*key) for key in (("t", "g0"), ("t", "g1"), ("t", "g2"), ("u", "g"))}
    assert [each.mode for each in found.values()] == [POP, PULL, POP, POP]
    assert found["t", "g0"].pop_share_queues == 5
    monkeypatch.setattr(request_mode, "MAX_MODES", 1)
    again.put(RequestMode("t", "g2", POP, 1))  # above the limit, but no mode is added


def test_adding_a_mode_encodes_only_the_new_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = RequestModes(tmp_path / "m.json", writable=True)
    for number in range(20):
        modes.put(RequestMode("t", f"g{number}", POP))
    encoded: list[object] = []
    encode = json_file.encode

    def counted(value: object) -> str:
        encoded.append(value)
        return encode(value)

    monkeypatch.setattr(json_file, "encode", counted)
    modes.put(RequestMode("t", "one more", POP))
    assert len(encoded) == 3, "its group, itself and its topic"
