"""Test that each created topic has its own id, also when recreated under one name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from raymq.storage.files import json_file
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig, TopicConfigs
from tests.state_journals import open_table, open_tables
from tests.store_records import SMALL


def id_of(topics: TopicConfigs, name: str = "orders") -> str:
    config = topics.get(name)
    assert config is not None
    return config.topic_id


def test_recreated_topic_has_another_id(tmp_path: Path) -> None:
    topics = open_table(tmp_path, TopicConfigs())
    topics.put(TopicConfig("orders", 4, 4), TopicConfig("bills", 4, 4))
    first = id_of(topics)
    assert first
    assert first != id_of(topics, "bills")
    topics.delete("orders")
    topics.put(TopicConfig("orders", 4, 4))
    assert id_of(topics) not in {"", first}


def test_topic_keeps_its_id_over_changes_and_restarts(tmp_path: Path) -> None:
    journal = open_tables(tmp_path, topics := TopicConfigs())
    topics.put(TopicConfig("orders", 4, 4))
    first = id_of(topics)
    topics.put(TopicConfig("orders", 8, 8))  # a change creates the config from nothing
    config = topics.get("orders")
    assert config is not None
    topics.put(replace(config, perm=4, topic_id="another"))
    assert id_of(topics) == first
    assert id_of(open_table(tmp_path, TopicConfigs(), writable=False)) == first, "from the journal"
    journal.close(compact=True)
    assert id_of(open_table(tmp_path, TopicConfigs(), writable=False)) == first, "from the snapshot"


def test_topic_keeps_its_id_through_rocketmqs_file(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        store.topic_configs.put(TopicConfig("orders", 4, 4))
        first = id_of(store.topic_configs)
    path = tmp_path / "config" / "topics.json"
    content = json_file.load(path)
    del content["raymqCrc"]  # as somebody does who changes the file
    path.write_text(json.dumps(content))
    with Store.open(tmp_path, SMALL) as store:
        assert id_of(store.topic_configs) == first


def test_topic_of_rocketmq_has_no_id_until_recreated(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"topicConfigTable": {"orders": TopicConfig("orders", 4, 4).to_json()}}))
    with Store.open(tmp_path, SMALL) as store:
        topics = store.topic_configs
        topics.put(TopicConfig("orders", 8, 8))
        assert id_of(topics) == ""
        topics.delete("orders")
        topics.put(TopicConfig("orders", 8, 8))
        assert id_of(topics)
