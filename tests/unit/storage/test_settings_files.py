"""Test topics.json and subscriptionGroup.json: RocketMQ's form, integer keys, spare copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.errors import StoreCorrupt, StoreError
from raymq.storage.files import json_file
from raymq.storage.tables.group_config import GroupConfig, GroupConfigs
from raymq.storage.tables.topic_config import TopicConfig, TopicConfigs


def test_quoted_and_unquoted_integer_keys_are_read() -> None:
    bare = '{\n\t"offsetTable":{"a@b":{0:17,1:42\n\t\t},"{1:2}":{ -3 : 4}},"n":[1,{5:6}]}'
    quoted = '{"offsetTable":{"a@b":{"0":17,"1":42},"{1:2}":{"-3":4}},"n":[1,{"5":6}]}'
    assert json_file.parse(bare) == json_file.parse(quoted)
    assert json_file.parse(bare)["offsetTable"]["{1:2}"] == {"-3": 4}


def test_topics_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    topics = TopicConfigs(path, writable=True)
    config = TopicConfig("orders", 4, 2, 6, True, {"message.type": "FIFO"})
    topics.put(config)
    topics.put(TopicConfig("other", 1, 1))
    assert topics.delete("other")
    assert not topics.delete("other")

    again = TopicConfigs(path, writable=False)
    assert again.all() == {"orders": config}
    assert again.get("orders") == config
    assert again.get("other") is None
    assert again.version.counter == 3
    with pytest.raises(StoreError):
        again.put(config)


def test_topics_file_of_rocketmq_is_read(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text(
        '{\n\t"dataVersion":{"counter":7,"stateVersion":0,"timestamp":5},\n\t"topicConfigTable":{"t":{"attributes":'
        '{"message.type":"FIFO"},"order":true,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":'
        '"t","topicSysFlag":0,"writeQueueNums":2}}\n}'
    )
    assert TopicConfigs(path, writable=False).get("t") == TopicConfig("t", 4, 2, 6, True, {"message.type": "FIFO"})


def test_groups_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "config" / "subscriptionGroup.json"
    groups = GroupConfigs(path, writable=True)
    config = GroupConfig("g", retry_max_times=3, consume_broadcast_enable=False, consume_timeout_minutes=1)
    groups.put(config)
    assert GroupConfigs(path, writable=False).all() == {"g": config}
    groups.save()
    assert GroupConfigs(path, writable=False).all() == {"g": config}
    assert json_file.load(path)["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 3


def save_twice(path: Path) -> TopicConfigs:
    """Save two topics one by one; the spare copy has only the first."""
    topics = TopicConfigs(path, writable=True)
    for name in ("first", "second"):
        topics.put(TopicConfig(name, 1, 1))
        topics.save()
    return topics


def test_spare_copy_is_read_when_the_file_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    save_twice(path)
    path.write_text('{"topicConfigTable":{"fir')
    assert list(TopicConfigs(path, writable=False).all()) == ["first"]

    path.with_name("topics.json.bak").write_text("")
    with pytest.raises(StoreCorrupt):
        TopicConfigs(path, writable=False)


def test_change_keeps_the_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    topics = TopicConfigs(path, writable=True)
    topics.put(*(TopicConfig(f"t{number}", 4, 4) for number in range(50)))
    topics.save()
    before = path.read_bytes()
    topics.put(TopicConfig('odd "name"', 1, 1), TopicConfig("t7", 8, 8))
    assert topics.delete("t9")
    topics.save()

    assert path.with_name("topics.json.bak").read_bytes() == before
    lines = set(before.decode().splitlines())
    assert len([line for line in path.read_text().splitlines() if line not in lines]) <= 4  # two, version, last comma
    assert TopicConfigs(path, writable=False).all() == topics.all()
    assert topics.all().keys() == {f"t{number}" for number in range(50)} - {"t9"} | {'odd "name"'}


def test_damaged_file_does_not_replace_the_spare_copy(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    topics = save_twice(path)
    spare = path.with_name("topics.json.bak").read_bytes()
    path.write_bytes(path.read_bytes()[:-20])
    topics.put(TopicConfig("third", 1, 1))
    topics.save()
    assert path.with_name("topics.json.bak").read_bytes() == spare
    assert list(TopicConfigs(path, writable=False).all()) == ["first", "second", "third"]
