"""Test settings with RocketMQ's names, key-value entries, and the properties format."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.broker_settings import broker_settings, load_retention
from raymq.actors.errors import InvalidInput, MessageNotFound, StoreCorrupt
from raymq.actors.names.kv_config import KVConfig
from raymq.actors.server_settings import MAX_SETTINGS, ServerSettings, SettingsFile, parse_bool
from raymq.actors.wire import java_properties as properties
from raymq.storage.config import StoreConfig
from raymq.storage.errors import StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.files.json_file import backup_path_of
from raymq.storage.log.retention import Retention
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.table_repair import find_broken, repair
from raymq.storage.tables.dynamic_config import DynamicConfigTable
from tests.faulty_calls import FaultyCalls


class Bench:
    """Hold settings, one of each kind, and record the applied values."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "settings.json"
        self.applied: list[str] = []
        self.open()

    def open(self) -> None:
        fixed, changeable = {"listenPort": "1"}, {"flag": ("false", self._apply)}
        self.settings = ServerSettings(SettingsFile(self.path), fixed, changeable)

    def _apply(self, value: str) -> None:
        parse_bool(value)
        self.applied.append(value)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_changed_settings_are_applied_at_next_start(bench: Bench) -> None:
    bench.settings.update({"flag": "true", "somethingOfRocketMQ": "7", "listenPort": "1"})
    assert bench.settings.all() == {"listenPort": "1", "flag": "true", "somethingOfRocketMQ": "7"}
    bench.open()
    assert bench.settings.all() == {"listenPort": "1", "flag": "true", "somethingOfRocketMQ": "7"}
    assert bench.applied == ["true", "true"]
    assert bench.settings.version.counter == 1


@pytest.mark.parametrize("bad", [{"listenPort": "2"}, {"flag": "maybe"}])
def test_refused_change_changes_nothing(bench: Bench, bad: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        bench.settings.update({"other": "1", **bad})
    assert bench.settings.all() == {"listenPort": "1", "flag": "false"}
    assert not bench.path.exists()


def test_number_of_settings_is_bounded(bench: Bench) -> None:
    with pytest.raises(InvalidInput):
        bench.settings.update({f"name{number}": "" for number in range(MAX_SETTINGS + 1)})


def test_key_values_survive_reopen(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    entries = KVConfig(path)
    entries.put("space", "key", "value ✓")
    entries.put("space", "other", "1")
    entries.delete("space", "other")
    entries.delete("space", "never there")
    entries = KVConfig(path)
    assert entries.get("space", "key") == "value ✓"
    assert entries.namespace("space") == {"key": "value ✓"}
    assert entries.find("space", "other") is None
    for ask in (lambda: entries.get("space", "other"), lambda: entries.namespace("none")):
        with pytest.raises(MessageNotFound):
            ask()
    with pytest.raises(InvalidInput):
        entries.put("", "key", "value")


def test_corrupt_key_values_raise_store_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    path.write_text("{")
    with pytest.raises(StoreCorrupt):
        KVConfig(path)


@pytest.mark.parametrize(
    ("lines", "settings"),
    [
        (b"a=1\nb = 2\r\nc:3\nd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        (b"# comment\n! comment\n\n  a=1\n", {"a": "1"}),
        (b"a=one \\\n   two\n", {"a": "one two"}),
        (b"path=C\\:\\\\logs\ntab=\\t\n", {"path": "C:\\logs", "tab": "\t"}),
        (b"check=\\u2713\nclef=\\ud834\\udd1e\n", {"check": "✓", "clef": "\U0001d11e"}),
        ("direct=✓\n".encode(), {"direct": "✓"}),
        (b"empty=\nbare\n", {"empty": "", "bare": ""}),
        (b"a=b=c\n", {"a": "b=c"}),
        (b"", {}),
    ],
)
def test_properties_are_read_like_java(lines: bytes, settings: dict[str, str]) -> None:
    assert properties.read(lines) == settings


def test_written_properties_are_readable_by_java() -> None:
    settings = {"path": "C:\\x", "check": "✓", "clef": "\U0001d11e", "lines": "a\nb", "plain": "1s 5s"}
    written = properties.write(settings)
    assert written.isascii()
    assert b"plain=1s 5s\n" in written
    assert b"clef=\\ud834\\udd1e\n" in written
    assert properties.read(written) == settings
    with pytest.raises(InvalidInput):
        properties.read(b"\xff")


def test_retention_time_is_validated_and_may_be_huge(tmp_path: Path) -> None:
    """Guard against a huge retention time, which ended every search for old files."""
    with Store.open(tmp_path) as store:
        core = BrokerCore("broker-a", store)
        settings = broker_settings(core, cluster="c", address="127.0.0.1:1", name_servers=(), auto_create_topics=False)
        settings.update({"fileReservedTime": "1e308"})
        assert core.delete_expired().log_files == 0
        for bad in ("inf", "nan", "0", "-1"):
            with pytest.raises(InvalidInput, match="fileReservedTime"):
                settings.update({"fileReservedTime": bad})
        with pytest.raises(InvalidInput, match="deleteWhen"):
            settings.update({"deleteWhen": "\u0663"})


def change_retention(directory: Path, *hours: str) -> None:
    with Store.open(directory) as store:
        core = BrokerCore("broker-a", store)
        for each in hours:
            settings = broker_settings(
                core, cluster="c", address="127.0.0.1:1", name_servers=(), auto_create_topics=False
            )
            settings.update({"fileReservedTime": each, "deleteWhen": "05"})


def test_retention_survives_restart_and_kill(tmp_path: Path) -> None:
    change_retention(tmp_path, "48", "96", "480")
    assert load_retention(tmp_path, StoreConfig()) == Retention(480, "05")
    store = Store.open(tmp_path)
    core = BrokerCore("broker-a", store)
    settings = broker_settings(core, cluster="c", address="127.0.0.1:1", name_servers=(), auto_create_topics=False)
    assert settings.version.counter == 3
    assert store.retention == Retention(480, "05")
    settings.update({"fileReservedTime": "24"})
    core.timers.log.close()
    store._flusher.stop()
    store._abandon()
    assert load_retention(tmp_path, StoreConfig()) == Retention(24, "05")


def test_refused_write_of_settings_is_made_up_for(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        settings = ServerSettings(store.tables.settings, {}, {})
        with replaced(FaultyCalls("write", 1, errno.ENOSPC)), pytest.raises(StoreFull):
            settings.update({"a": "1"})
        assert store.tables.settings.settings == {}
        settings.update({"b": "2"})
        assert store.tables.settings.settings == settings.all() == {"a": "1", "b": "2"}


@pytest.mark.parametrize("bad", [{"fileReservedTime": "4x0"}, {"deleteWhen": "0u"}, {"brokerPermission": "1"}])
def test_event_with_a_broken_value_is_refused(bad: dict[str, str]) -> None:
    """Guard against a flipped bit that silently became another rule."""
    table = DynamicConfigTable()
    with pytest.raises(ValueError, match=r"\w"):
        table.apply((1, 2, 0, bad))
    assert table.settings == {}


def test_corrupt_settings_of_format_2_use_backup_or_fail(tmp_path: Path) -> None:
    """Guard against a flipped bit that kept the broker down with an error without file."""
    path = StorePaths(tmp_path).settings
    path.parent.mkdir(parents=True)
    for file, hours in ((path, "4x0"), (backup_path_of(path), "96")):
        file.write_text(f'{{"settings":{{"fileReservedTime":"{hours}","deleteWhen":"05"}}}}')
    assert load_retention(tmp_path, StoreConfig()) == Retention(96, "05"), "as before the last change"
    backup_path_of(path).write_text(backup_path_of(path).read_text().replace('"05"', '"0u"'))
    for read in (lambda: load_retention(tmp_path, StoreConfig()), lambda: Store.open(tmp_path)):
        with pytest.raises(StoreCorrupt, match="raymq store repair") as caught:
            read()
        assert caught.value.file == str(path)
    [broken] = find_broken(tmp_path)
    assert broken.file == str(path)
    assert "fileReservedTime" in broken.lost
    repair(tmp_path)
    assert load_retention(tmp_path, StoreConfig()) == Retention(72, "04")
    Store.open(tmp_path).close()
