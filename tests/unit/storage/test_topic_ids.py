"""Test that each created topic has its own id, also when recreated under one name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from raymq.storage.tables.topic_config import TopicConfig, TopicConfigs


def id_of(topics: TopicConfigs, name: str = "orders") -> str:
    config = topics.get(name)
    assert config is not None
    return config.topic_id


def test_recreated_topic_has_another_id(tmp_path: Path) -> None:
    topics = TopicConfigs(tmp_path / "topics.json", writable=True)
    topics.put(TopicConfig("orders", 4, 4), TopicConfig("bills", 4, 4))
    first = id_of(topics)
    assert first
    assert first != id_of(topics, "bills")
    topics.delete("orders")
    topics.put(TopicConfig("orders", 4, 4))
    assert id_of(topics) not in {"", first}


def test_topic_keeps_its_id_over_changes_and_restarts(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    topics = TopicConfigs(path, writable=True)
    topics.put(TopicConfig("orders", 4, 4))
    first = id_of(topics)
    topics.put(TopicConfig("orders", 8, 8))  # a change creates the config from nothing
    config = topics.get("orders")
    assert config is not None
    topics.put(replace(config, perm=4, topic_id="another"))
    assert id_of(topics) == first
    assert id_of(TopicConfigs(path, writable=False)) == first, "from the journal"
    topics.save()
    topics.close()
    assert id_of(TopicConfigs(path, writable=False)) == first, "from the file"


def test_topic_of_rocketmq_has_no_id_until_recreated(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text(json.dumps({"topicConfigTable": {"orders": TopicConfig("orders", 4, 4).to_json()}}))
    topics = TopicConfigs(path, writable=True)
    topics.put(TopicConfig("orders", 8, 8))
    assert id_of(topics) == ""
    topics.delete("orders")
    topics.put(TopicConfig("orders", 8, 8))
    assert id_of(topics)
