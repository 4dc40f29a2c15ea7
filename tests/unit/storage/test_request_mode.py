"""Request modes: RocketMQ's file, read and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.storage.errors import StoreError
from raymq.storage.tables.request_mode import POP, PULL, RequestMode, RequestModes


def test_what_is_set_is_there_after_a_restart(tmp_path: Path) -> None:
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


def test_a_store_that_is_only_read_keeps_its_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        RequestModes(tmp_path / "messageRequestMode.json", writable=False).put(RequestMode("t", "g"))
