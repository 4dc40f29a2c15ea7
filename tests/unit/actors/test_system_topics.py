"""Test the topics that a broker creates for itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.system_topics import system_topics
from raymq.storage.config import StoreConfig
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig

SMALL = StoreConfig(commitlog_file_bytes=1 << 16, index_slots=10, index_entries=100, delay_levels="1s 2s 3s")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path, SMALL) as made:
        yield made


def table(*, auto_create: bool = False, cluster: str = "blue") -> dict[str, tuple[int, int]]:
    topics = system_topics(cluster, "broker-a", delay_levels=3, auto_create=auto_create)
    assert all(topic.read_queues == topic.write_queues for topic in topics)
    return {topic.name: (topic.write_queues, topic.perm) for topic in topics}


def test_system_topics_match_rocketmq_tools() -> None:
    assert table() == {
        "SCHEDULE_TOPIC_XXXX": (3, 6),
        "rmq_sys_wheel_timer": (1, 6),
        "SELF_TEST_TOPIC": (1, 6),
        "BenchmarkTest": (1024, 6),
        "OFFSET_MOVED_EVENT": (1, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "RMQ_SYS_STAGED_ROWS": (1, 0),
        "RMQ_SYS_TRACE_TOPIC": (1, 6),
        "blue": (16, 7),
        "broker-a": (1, 7),
        "blue_REPLY_TOPIC": (1, 6),
    }


def test_tbw102_exists_only_with_auto_create() -> None:
    assert table(auto_create=True) == {**table(), "TBW102": (8, 7)}


def test_cluster_name_that_is_no_topic_name_adds_none() -> None:
    assert set(table(cluster="blue.green")) == set(table()) - {"blue", "blue_REPLY_TOPIC"}


def test_startup_creates_system_topics_and_keeps_changes(store: Store) -> None:
    store.topic_configs.put(TopicConfig("BenchmarkTest", 2, 2))
    core = BrokerCore("broker-a", store, cluster="blue")
    assert set(core.topics.all()) == set(table())
    assert core.topic("BenchmarkTest").write_queues == 2
    version = store.topic_configs.version
    BrokerCore("broker-a", store, cluster="blue")
    assert store.topic_configs.version == version
