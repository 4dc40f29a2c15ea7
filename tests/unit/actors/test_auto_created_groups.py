"""Test automatically created groups: bounded, cheap, soon on disk, and not created by queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.errors import GroupNotFound, TopicNotFound
from raymq.storage.files import json_file
from raymq.storage.files.file_calls import replaced
from tests.faulty_calls import FaultyCalls
from tests.unit.actors.bench import CONFIG, Bench


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "broker-a", replace(CONFIG, max_auto_groups=3, max_auto_topics=30))
    yield made
    made.store.close()


def save(bench: Bench) -> None:
    """Write RocketMQ's files, as the broker does every few seconds in another thread."""
    bench.store.begin_export()()


def test_group_creation_does_not_rewrite_table(bench: Bench) -> None:
    """Cover fault 13.21: each unknown group name rewrote the whole table."""
    save(bench)
    with replaced(calls := FaultyCalls()):
        for number in range(100):
            assert bench.core.ensure_group(f"g{number}")
        assert calls.counts["rename"] == 0
        save(bench)
        assert calls.counts["rename"] == 2, "the files of topics and groups"
        save(bench)
        assert calls.counts["rename"] == 2
    bench.crash()
    assert "g99" in bench.core.group_settings
    assert "%RETRY%g99" in bench.core.topics


def test_group_creation_and_deletion_survive_crash(bench: Bench) -> None:
    bench.core.ensure_group("g")
    bench.core.ensure_group("h")
    bench.crash()
    assert {"g", "h"} <= bench.core.group_settings.all().keys()
    assert "%RETRY%g" in bench.core.topics
    bench.core.group_settings.delete("g", with_offsets=False)
    bench.crash()
    assert "g" not in bench.core.group_settings
    assert "h" in bench.core.group_settings
    bench.core.ensure_group("i")
    bench.store._flusher.stop()
    bench.store._abandon()
    journal = max((bench.directory / "raymq" / "state").glob("journal-*"))
    journal.write_bytes(journal.read_bytes() + journal.read_bytes()[:30])  # torn: the begin of an event
    bench.open()
    assert {"h", "i"} <= bench.core.group_settings.all().keys()
    bench.core.ensure_group("j")
    bench.crash()
    assert {"h", "i", "j"} <= bench.core.group_settings.all().keys()


def test_group_creation_survives_stop_and_later_change(bench: Bench) -> None:
    bench.core.ensure_group("g")
    bench.store.close()
    bench.open()
    assert "g" in bench.core.group_settings
    bench.core.ensure_group("h")
    bench.core.group_settings.change([{"groupName": "i"}])
    bench.crash()
    assert {"g", "h", "i"} <= bench.core.group_settings.all().keys()
    assert "%RETRY%i" in bench.core.topics


def test_late_export_does_not_overwrite_newer_content(bench: Bench) -> None:
    bench.core.ensure_group("g")
    late = bench.store.begin_export()
    bench.core.group_settings.change([{"groupName": "h"}])
    late()
    bench.core.group_settings.delete("g", with_offsets=False)
    bench.crash()
    assert {"g", "h"} & bench.core.group_settings.all().keys() == {"h"}
    save(bench)
    exported = json_file.load(bench.directory / "config" / "subscriptionGroup.json")["subscriptionGroupTable"]
    assert exported.keys() == bench.core.group_settings.all().keys()


def test_group_list_is_saved_as_one_change(bench: Bench) -> None:
    with replaced(calls := FaultyCalls()):
        bench.core.group_settings.change([{"groupName": f"g{number}"} for number in range(1_000)])
        assert calls.counts["rename"] <= 8
    bench.crash()
    assert len(bench.core.group_settings.all()) >= 1_000


def test_auto_created_groups_are_bounded(small: Bench) -> None:
    for name in ("a", "b", "c"):
        small.core.ensure_group(name)
    with pytest.raises(GroupNotFound, match="has 3 groups"):
        small.core.ensure_group("d")
    small.core.ensure_group("a")
    small.core.group_settings.change([{"groupName": "d"}])
    assert "d" in small.core.group_settings
    assert "%RETRY%d" in small.core.topics, "who creates a group may do so"


def test_group_query_creates_no_group(bench: Bench) -> None:
    assert bench.core.group("g").consume_enable
    assert "g" not in bench.core.group_settings


def test_auto_created_topics_are_bounded(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "broker-a", replace(CONFIG, max_auto_topics=8))
    bench.core._auto_create_topics = True
    room = 8 - len(bench.core.topics.all())
    for number in range(room):
        bench.core.check_writable(f"t{number}", 0)
    with pytest.raises(TopicNotFound, match="has 8 topics"):
        bench.core.check_writable("more", 0)
    bench.core.topics.create("wanted", 1)
    bench.store.close()
