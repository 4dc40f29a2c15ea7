"""Test topics.json and subscriptionGroup.json: RocketMQ's form, integer keys, spare copies, damaged copies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.storage.errors import StoreCorrupt, StoreError
from raymq.storage.files import json_file
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig, GroupConfigs
from raymq.storage.tables.topic_config import TopicConfig, TopicConfigs
from tests.state_journals import open_table
from tests.store_records import SMALL


def test_quoted_and_unquoted_integer_keys_are_read() -> None:
    bare = '{\n\t"offsetTable":{"a@b":{0:17,1:42\n\t\t},"{1:2}":{ -3 : 4}},"n":[1,{5:6}]}'
    quoted = '{"offsetTable":{"a@b":{"0":17,"1":42},"{1:2}":{"-3":4}},"n":[1,{"5":6}]}'
    assert json_file.parse(bare) == json_file.parse(quoted)
    assert json_file.parse(bare)["offsetTable"]["{1:2}"] == {"-3": 4}


def test_topics_survive_a_restart(tmp_path: Path) -> None:
    topics = open_table(tmp_path, TopicConfigs())
    config = TopicConfig("orders", 4, 2, 6, True, {"message.type": "FIFO"})
    topics.put(config)
    topics.put(TopicConfig("other", 1, 1))
    assert topics.delete("other")
    assert not topics.delete("other")

    again = open_table(tmp_path, TopicConfigs(), writable=False)
    assert again.all() == {"orders": config}
    assert again.get("orders") == config
    assert again.get("other") is None
    assert again.version == topics.version
    assert again.version.counter == 3
    with pytest.raises(StoreError):
        again.put(config)


def test_groups_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "config" / "subscriptionGroup.json"
    config = GroupConfig("g", retry_max_times=3, consume_broadcast_enable=False, consume_timeout_minutes=1)
    with Store.open(tmp_path, SMALL) as store:
        store.group_configs.put(config)
        assert open_table(tmp_path, GroupConfigs(), writable=False).all() == {"g": config}
        store.begin_export()()
        assert json_file.load(path)["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 3
    with Store.open(tmp_path, SMALL, read_only=True) as store:
        assert store.group_configs.all() == {"g": config}


def topics_in(directory: Path) -> dict[str, TopicConfig]:
    with Store.open(directory, SMALL, read_only=True) as store:
        return store.topic_configs.all()


def test_topics_file_of_rocketmq_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir()
    path.write_text(
        '{\n\t"dataVersion":{"counter":7,"stateVersion":0,"timestamp":5},\n\t"topicConfigTable":{"t":{"attributes":'
        '{"message.type":"FIFO"},"order":true,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":'
        '"t","topicSysFlag":0,"writeQueueNums":2}}\n}'
    )
    assert topics_in(tmp_path) == {"t": TopicConfig("t", 4, 2, 6, True, {"message.type": "FIFO"})}


def test_spare_copy_of_rocketmq_is_read_if_the_file_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir()
    spare = json_file.backup_path_of(path)
    spare.write_text(json.dumps({"topicConfigTable": {"first": TopicConfig("first", 1, 1).to_json()}}))
    path.write_text('{"topicConfigTable":{"fir')
    assert list(topics_in(tmp_path)) == ["first"]

    spare.write_text("")
    with pytest.raises(StoreCorrupt):
        topics_in(tmp_path)
    with pytest.raises(StoreCorrupt):
        Store.open(tmp_path, SMALL)
    assert path.read_text() == '{"topicConfigTable":{"fir', "a refused start keeps it"


def test_change_keeps_the_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    with Store.open(tmp_path, SMALL) as store:
        topics = store.topic_configs
        topics.put(*(TopicConfig(f"t{number}", 4, 4) for number in range(50)))
        store.begin_export()()
        before = path.read_bytes()
        topics.put(TopicConfig('odd "name"', 1, 1), TopicConfig("t7", 8, 8))
        assert topics.delete("t9")
        store.begin_export()()
        lines = set(before.decode().splitlines())
        changed = [line for line in path.read_text().splitlines() if line not in lines]
        assert len(changed) <= 5  # two, version, last comma, checksum
        _, _, exported = TopicConfigs.parse(json_file.load(path))
        assert exported == topics.all()
        assert exported.keys() == {f"t{number}" for number in range(50)} - {"t9"} | {'odd "name"'}


@pytest.mark.parametrize("content", [b"", b"{", b'{"topicConfigTable":7}', b'{"topicConfigTable":{"first":{}}'])
def test_damaged_copy_of_the_topics_is_written_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config" / "topics.json"
    with Store.open(tmp_path, SMALL) as store:
        store.topic_configs.put(TopicConfig("first", 2, 2))
    whole = json_file.load(path)["topicConfigTable"]
    path.write_bytes(content)
    with Store.open(tmp_path, SMALL) as store:
        assert store.topic_configs.all() == {"first": TopicConfig("first", 2, 2)}
        store.begin_export()()
        assert json_file.load(path)["topicConfigTable"] == whole
