"""Test config/*.json of a real broker: what RocketMQ reads, and that unknown parts are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from raymq.storage.files import json_file
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.topic_config import TopicConfig
from tests import golden_stores as golden
from tests.store_records import SMALL

#: The files that RayMQ writes for RocketMQ.
EXPORTED = {
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "delayOffset.json",
    "messageRequestMode.json",
}
BUILT_IN_TOPICS = {
    "SELF_TEST_TOPIC": (1, 6),
    "TBW102": (8, 7),
    "BenchmarkTest": (1024, 6),
    "DefaultCluster": (16, 7),
    "broker-a": (1, 7),
    "OFFSET_MOVED_EVENT": (1, 6),
    "SCHEDULE_TOPIC_XXXX": (18, 6),
    "DefaultCluster_REPLY_TOPIC": (1, 6),
    "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
}


@pytest.mark.parametrize("name", golden.NAMES)
@pytest.mark.parametrize("read_only", [True, False])
def test_offsets_topics_and_groups_equal_rocketmqs(tmp_path: Path, name: str, read_only: bool) -> None:
    expected = golden.answers(name)
    with Store.open(golden.unpack(name, tmp_path), golden.config(name), read_only) as store:
        offsets = store.consumer_offsets
        table = {
            f"{topic}@{group}": {str(queue): offset for queue, offset in offsets.of(group, topic).items()}
            for group in offsets.groups()
            for topic in offsets.topics_of(group)
        }
        assert table == expected["consumer_offsets"]
        delays = {str(level): store.delay_offsets.get(level) for level in range(1, 19)}
        assert {level: offset for level, offset in delays.items() if offset is not None} == expected["delay_offsets"]

        topics = {
            config.name: {
                "read": config.read_queues,
                "write": config.write_queues,
                "perm": config.perm,
                "order": config.order,
                "filter": "SINGLE_TAG",
                "attributes": dict(config.attributes),
            }
            for config in store.topic_configs.all().values()
        }
        assert topics == expected["topics"]
        for topic, (queues, perm) in BUILT_IN_TOPICS.items():
            assert topics[topic]["read"] == topics[topic]["write"] == queues
            assert topics[topic]["perm"] == perm

        groups = {
            config.name: {
                "retry_max_times": config.retry_max_times,
                "retry_queues": config.retry_queues,
                "enabled": config.consume_enable,
                "broadcast": config.consume_broadcast_enable,
                "orderly": config.consume_orderly,
                "timeout_minutes": config.consume_timeout_minutes,
                "attributes": dict(config.attributes),
            }
            for config in store.group_configs.all().values()
        }
        assert groups == expected["groups"]


def shape(value: Any) -> Any:
    """Return names and types without the values."""
    if isinstance(value, Mapping):
        return {key: shape(inner) for key, inner in value.items()}
    return type(value).__name__


@pytest.mark.parametrize("name", golden.NAMES)
def test_saved_settings_equal_rocketmqs_files(tmp_path: Path, name: str) -> None:
    # Each file is saved without a change: only the version of the table differs, and the checksum.
    directory = golden.unpack(name, tmp_path)
    config = directory / "config"
    before = {path.name: json_file.load(path) for path in config.glob("*.json")}
    spares = {path.name: path.read_bytes() for path in config.glob("*.bak")}
    with Store.open(directory, golden.config(name)) as store:
        store.topic_configs.put(next(iter(store.topic_configs.all().values())))
        store.group_configs.put(next(iter(store.group_configs.all().values())))
    for file in ("topics.json", "subscriptionGroup.json"):
        after = json_file.load(config / file)
        assert after.pop("raymqCrc")
        assert after["dataVersion"].pop("counter") > before[file]["dataVersion"].pop("counter")
        assert after["dataVersion"].pop("timestamp") > before[file]["dataVersion"].pop("timestamp")
        assert after == before[file]
        content = (config / file).read_text("utf-8")
        assert json.loads(content)
        assert content.startswith('{\n"dataVersion":{"counter":')
        assert not content.endswith("\n")
    assert {path.name: path.read_bytes() for path in config.glob("*.bak")} == spares


@pytest.mark.parametrize("name", golden.NAMES)
def test_offset_files_keep_their_shape(tmp_path: Path, name: str) -> None:
    directory = golden.unpack(name, tmp_path)
    config = directory / "config"
    before = {path.name: json_file.load(path) for path in config.glob("*.json")}
    unused = {path.name: path.read_bytes() for path in config.iterdir() if path.name not in EXPORTED}
    with Store.open(directory, golden.config(name)) as store:
        store.consumer_offsets.commit("raymq_group", "orders", 3, 17)
        store.delay_offsets.commit(18, 4, store.max_physical_offset)
    after = {path.name: json_file.load(path) for path in config.glob("*.json")}
    for file in ("consumerOffset.json", "delayOffset.json"):
        assert shape(after[file]["dataVersion"]) == shape(
            before.get(file, {}).get("dataVersion", {"counter": 0, "stateVersion": 0, "timestamp": 0})
        )
    table = dict(before["consumerOffset.json"]["offsetTable"])
    assert after["consumerOffset.json"]["offsetTable"] == table | {"orders@raymq_group": {"3": 17}}
    members = dict(before["consumerOffset.json"]["groupTopicMap"])
    found = {group: sorted(topics) for group, topics in after["consumerOffset.json"]["groupTopicMap"].items()}
    assert found == {group: sorted(topics) for group, topics in (members | {"raymq_group": ["orders"]}).items()}
    delays = dict(before["delayOffset.json"]["offsetTable"])
    assert after["delayOffset.json"]["offsetTable"] == delays | {"18": 4}
    for file in ("topics.json", "subscriptionGroup.json"):
        assert after[file].pop("raymqCrc")
        counters = [each[file]["dataVersion"].pop("counter") for each in (before, after)]
        assert counters[0] <= counters[1]
        assert after[file] == before[file]
    assert {path.name: path.read_bytes() for path in config.iterdir() if path.name not in EXPORTED} == unused


def test_unknown_settings_are_kept(tmp_path: Path) -> None:
    # A group with RocketMQ's exponential retries, a topic with flags of a later version, keys of the file itself.
    config = tmp_path / "config"
    config.mkdir()
    topics_path, groups_path = config / "topics.json", config / "subscriptionGroup.json"
    topic = TopicConfig("t", 2, 2).to_json() | {"topicSysFlag": 3, "topicFilterType": "MULTI_TAG", "new": [1]}
    group = GroupConfig("g").to_json() | {
        "groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000}},
        "brokerId": 1,
        "subscriptionDataSet": [],
    }
    topics_path.write_text(json.dumps({"topicConfigTable": {"t": topic}, "later": 1}))
    groups_path.write_text(
        json.dumps({"subscriptionGroupTable": {"g": group}, "forbiddenTable": {"g": {"t": 1}}, "later": 2})
    )
    for _ in range(2):
        with Store.open(tmp_path, SMALL) as store:
            store.topic_configs.put(TopicConfig("other", 1, 1))
            store.group_configs.put(GroupConfig("other"))
        saved_topics, saved_groups = json_file.load(topics_path), json_file.load(groups_path)
        assert saved_topics["topicConfigTable"]["t"] == topic
        assert saved_groups["subscriptionGroupTable"]["g"] == group
        assert (saved_topics["later"], saved_groups["later"]) == (1, 2)
        assert saved_groups["forbiddenTable"] == {"g": {"t": 1}}


@pytest.mark.parametrize("compacted", [False, True])
def test_rocketmqs_change_of_an_older_copy_is_taken(tmp_path: Path, compacted: bool) -> None:
    store = Store.open(tmp_path, SMALL)
    store.topic_configs.put(TopicConfig("orders", 4, 4))
    store.begin_export()()
    store.topic_configs.put(TopicConfig("later", 1, 1))
    if compacted:
        store._parts.journal.compact()
    store._flusher.stop()
    store._abandon()
    path = tmp_path / "config" / "topics.json"
    table = json.loads(path.read_text())
    del table["raymqCrc"]
    table["topicConfigTable"]["orders"]["perm"] = 4
    path.write_text(json.dumps(table))
    for _ in range(2):
        with Store.open(tmp_path, SMALL) as store:
            orders, later = store.topic_configs.get("orders"), store.topic_configs.get("later")
            assert orders is not None
            assert orders.perm == 4
            assert later is not None, "it was made after the copy that RocketMQ read"
