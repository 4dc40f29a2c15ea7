"""Test that a table that is temporarily unreadable fails the start and is kept."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import StoreError
from raymq.storage.files import fileutil
from raymq.storage.files.descriptor_reserve import DESCRIPTOR_RESERVE
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.topic_config import TopicConfig
from raymq.storage.timers.timer_log import TimerLog
from tests.store_records import SMALL, append, make_record

CONFIG = replace(SMALL, delay_levels="1m 5m", flush_interval_ms=3_600_000)
TABLES = (
    "raymq/state.json",
    "raymq/state/journal-*",
    "raymq/state/snapshot-*",
    "config/topics.json",
    "config/consumerOffset.json",
    "config/delayOffset.json",
    "config/subscriptionGroup.json",
    "config/messageRequestMode.json",
    "checkpoint",
)


class Unreadable(FileCalls):
    """Fake a disk on which one file cannot be opened."""

    def __init__(self, path: Path, error: int) -> None:
        self.path = path
        self.error = error
        self.attempts = 0

    def open(self, path: Path, flags: int) -> int:
        if path == self.path:
            self.attempts += 1
            raise OSError(self.error, "injected", str(path))
        return super().open(path, flags)


@pytest.fixture(scope="module")
def killed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a killed store with something in each table and a changed delay table."""
    directory = tmp_path_factory.mktemp("used") / "store"
    with Store.open(directory, replace(CONFIG, delay_levels="1s 5s")) as store:
        properties = encode_properties({"DELAY": "1"})
        waiting = encode("SCHEDULE_TOPIC_XXXX", 0, b"w", properties, born_timestamp_ms=1, born_host=("10.0.0.1", 1))
        append(store, make_record(b"a", topic="t"), waiting)
    store = Store.open(directory, CONFIG)
    store.consumer_offsets.commit("g", "t", 0, 1)
    store.topic_configs.put(TopicConfig("t", 1, 1))
    store.group_configs.put(GroupConfig("g"))
    store.delete_topic("none")
    store._parts.journal.compact()
    store.begin_export()()
    store.consumer_offsets.commit("h", "t", 0, 0)
    store._save_checkpoint()
    store._flusher.stop()
    store._abandon()
    return directory


def tables(directory: Path) -> dict[str, object]:
    with Store.open(directory, CONFIG, read_only=True) as store:
        return {
            "epoch": store.epoch,
            "offsets": store.consumer_offsets.offsets,
            "topics": store.topic_configs.all(),
            "groups": store.group_configs.all(),
            "levels": store.delay_level_history.saved,
            "incarnation": store.incarnation("none"),
        }


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("name", TABLES)
def test_unreadable_table_fails_the_start_and_is_kept(
    killed_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: int
) -> None:
    # A short lack of descriptors used to recreate the epochs and the table of delay levels.
    monkeypatch.setattr(DESCRIPTOR_RESERVE, "release_one", lambda: False)
    directory = tmp_path / "store"
    shutil.copytree(killed_store, directory)
    before = tables(directory)
    calls = Unreadable(max(directory.glob(name)), error)
    content = calls.path.read_bytes()
    with replaced(calls), pytest.raises(StoreError, match=r"EMFILE|EIO"):
        Store.open(directory, CONFIG)
    assert calls.attempts
    assert calls.path.read_bytes() == content
    assert tables(directory) == before
    with Store.open(directory, CONFIG) as store:
        assert store.epoch == before["epoch"]
        assert store.delay_level_history.saved[1][1] == "1m 5m"


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
def test_unreadable_timers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    monkeypatch.setattr(DESCRIPTOR_RESERVE, "release_one", lambda: False)
    TimerLog(tmp_path / "timers", log_end=0, queue_end=0, memory_lost=False).close()
    state = tmp_path / "timers" / "state.json"
    if state.exists():
        with replaced(Unreadable(state, error)), pytest.raises(StoreError):
            TimerLog(tmp_path / "timers", log_end=0, queue_end=0, memory_lost=False)


def test_only_a_missing_file_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fileutil.read_whole(tmp_path / "none")
    with pytest.raises(StoreError, match="EISDIR"):
        fileutil.read_whole(tmp_path)
