"""Test that a server can start with all values that clients made it store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.broker.core.topic_manager import TopicChange
from raymq.actors.broker.handlers.admin_topics import _read_change
from raymq.actors.errors import InvalidInput
from raymq.actors.names.kv_config import KVConfig
from raymq.actors.server_settings import SavedSettings, ServerSettings, SettingsFile
from raymq.actors.wire import java_properties, json_body
from raymq.storage.files.file_calls import replaced
from raymq.storage.table_repair import find_broken
from raymq.storage.tables.dynamic_config import DynamicConfigTable
from raymq.storage.tables.request_mode import RequestMode
from tests.faulty_calls import UnsyncedCalls
from tests.state_journals import open_table
from tests.unit.actors.bench import Bench

#: JSON values that a body may contain.
VALUES = [
    "[" * 70 + "]" * 70,
    '{"a":' * 62 + "1" + "}" * 62,
    '{"a":' * 900 + "1" + "}" * 900,
    '"\\ud800"',
    '"{1:2}"',
    "1e999",
    "-1e999",
    "NaN",
    "9" * 4_000,
    "true",
    "null",
    "[]",
    '"' + "x" * 100_000 + '"',
]


def change_group(bench: Bench, field: str, value: Any) -> None:
    bench.core.group_settings.change([{"groupName": "g", field: value}])


def change_topic(bench: Bench, field: str, value: Any) -> None:
    payload = {"topicName": "made", field: value if field != "attributes" else {"+message.type": value}}
    change: TopicChange = _read_change(payload)
    bench.core.topics.change([change])


def set_mode(bench: Bench, field: str, value: Any) -> None:
    if isinstance(value, int):
        bench.store.request_modes.put(RequestMode("t", "g", "POP", value))


SETTERS: list[tuple[Callable[[Bench, str, Any], None], str]] = [
    *[(change_group, field) for field in ("groupRetryPolicy", "attributes", "brokerId", "groupSysFlag")],
    *[(change_group, field) for field in ("whichBrokerWhenConsumeSlowly", "notifyConsumerIdsChangedEnable")],
    *[(change_topic, field) for field in ("attributes", "topicSysFlag", "topicFilterType", "perm", "order")],
    (set_mode, "popShareQueueNum"),
]


@pytest.mark.parametrize("end", ["killed", "closed"])
@pytest.mark.parametrize(("change", "field"), SETTERS)
def test_broker_starts_with_any_accepted_value(
    bench: Bench, change: Callable[[Bench, str, Any], None], field: str, end: str
) -> None:
    """Guard against accepting a retry policy of 70 levels that no start can read."""
    with replaced(UnsyncedCalls()):
        for payload in VALUES:
            with contextlib.suppress(InvalidInput):
                value = json_body.read_object(f'{{"v":{payload}}}'.encode())["v"]
                change(bench, field, value)
            known = {name: json.dumps(each.to_json()) for name, each in bench.core.group_settings.all().items()}
            topics, mode = bench.core.topics.all(), bench.store.request_modes.get("t", "g")
            if end == "closed":
                bench.store.close()
                bench.open()
            else:
                bench.crash()
            assert find_broken(bench.directory) == []
            again = {name: json.dumps(each.to_json()) for name, each in bench.core.group_settings.all().items()}
            assert again == known
            assert {name: each.to_json() for name, each in bench.core.topics.all().items()} == {
                name: each.to_json() for name, each in topics.items()
            }
            assert bench.store.request_modes.get("t", "g") == mode


TEXTS = ["\U0001f600", "x" * 10_000, "{1:2}", "\x00", '"', "\\", "\u2028", "[" * 1_000]


def test_name_server_starts_with_any_accepted_value(tmp_path: Path) -> None:
    entries = KVConfig(tmp_path / "kv.json")
    for text in TEXTS:
        entries.put(text, text, text)
        assert KVConfig(tmp_path / "kv.json").get(text, text) == text


def test_settings_survive_restart(tmp_path: Path) -> None:
    def read_file() -> SavedSettings:
        return SettingsFile(tmp_path / "settings.json")

    def read_table() -> SavedSettings:
        return open_table(tmp_path, DynamicConfigTable())

    for saved in (read_file, read_table):
        settings = ServerSettings(saved(), {}, {})
        settings.update(java_properties.read(b"a=\\ud800\nb=\\ud83d\\ude00\nc={1:2}\nd=\xc2\xb2\n"))
        assert ServerSettings(saved(), {}, {}).all() == settings.all()
