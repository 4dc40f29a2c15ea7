"""Damage each kind of file at chosen bytes, and check what survives, what is reported, and that the store works on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import json_file
from raymq.storage.records import record as layout
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.topic_config import TopicConfig
from tests.store_records import SMALL, append, bodies, flip_byte, log_file, make_record

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("batch_code")]

COUNT = 60
SIZE = len(make_record(b"00", keys="k00", tags="a"))
#: The damaged record. It lies in the log's last file, which recovery scans.
VICTIM = 50


@pytest.fixture(scope="module")
def closed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a closed store with three log files, four queue files, two index files, settings and progress."""
    directory = tmp_path_factory.mktemp("damage") / "whole"
    with Store.open(directory, SMALL) as store:
        for name in ("first", "orders"):
            store.topic_configs.put(TopicConfig(name, 4, 4))
            store.group_configs.put(GroupConfig(name))
            store.begin_export()()
        store.consumer_offsets.commit("g", "orders", 0, 20)
        store.delay_offsets.commit(1, 7, 0)
        store.begin_export()()
        store._parts.journal.compact()
        for i in range(COUNT):
            append(store, make_record(b"%02d" % i, keys=f"k{i:02d}", tags="a"))
        store.consumer_offsets.commit("g", "orders", 0, 30)
        store.delay_offsets.commit(1, 8, 0)
    return directory


@pytest.fixture
def directory(closed_store: Path, tmp_path: Path) -> Path:
    shutil.copytree(closed_store, tmp_path / "s")
    return tmp_path / "s"


def read_numbers(store: Store) -> list[int]:
    return [int(body) for body in bodies(store)]


def check_all_messages(directory: Path) -> None:
    """Read every message by offset and by key, twice, with an append between."""
    for count in (COUNT, COUNT + 1):
        with Store.open(directory, SMALL) as store:
            assert store.recovery.corruption == []
            assert read_numbers(store) == list(range(count))
            for i in range(count):
                assert [int(r.body) for r in store.query("orders", f"k{i:02d}", 0, 1 << 60, 5)] == [i]
            result = append(store, make_record(b"%02d" % count, keys=f"k{count:02d}", tags="a"))
            assert result.queue_offsets.tolist() == [count]


PARTS = {
    "size": (layout.OFFSET_SIZE, 4),
    "magic": (layout.OFFSET_MAGIC, 4),
    "CRC": (layout.OFFSET_BODY_CRC, 4),
    "queue id": (layout.OFFSET_QUEUE_ID, 4),
    "flag": (layout.OFFSET_FLAG, 4),
    "queue offset": (layout.OFFSET_QUEUE_OFFSET, 8),
    "physical offset": (layout.OFFSET_PHYSICAL_OFFSET, 8),
    "sys flag": (layout.OFFSET_SYS_FLAG, 4),
    "born time": (layout.OFFSET_BORN_TIMESTAMP, 8),
    "born host": (layout.OFFSET_BORN_HOST, 8),
    "store time": (layout.OFFSET_STORE_TIMESTAMP, 8),
    "store host": (layout.OFFSET_STORE_HOST, 8),
    "reconsume times": (layout.OFFSET_RECONSUME_TIMES, 4),
    "prepared transaction": (layout.OFFSET_PREPARED_TRANSACTION_OFFSET, 8),
    "body length": (layout.OFFSET_BODY_LENGTH, 4),
    "body": (layout.OFFSET_BODY, 2),
    "topic length": (layout.OFFSET_BODY + 2, 1),
    "topic": (layout.OFFSET_BODY + 3, 6),
    "properties length": (layout.OFFSET_BODY + 9, 2),
    "properties": (layout.OFFSET_BODY + 11, SIZE - layout.OFFSET_BODY - 11),
}
#: RocketMQ's CRC covers only the body; changes of these other parts contradict nothing.
SILENT = {"flag", "born time", "born host", "store time", "store host", "reconsume times", "prepared transaction"}
#: Detected only where the change matters: some changed values are as valid as the original.
PARTLY = {"properties", "sys flag", "queue offset"}


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("part", PARTS)
def test_damaged_record_is_reported_and_hides_no_other(directory: Path, part: str) -> None:
    """All other records survive; damage of a checked part is reported, and the record is not served."""
    begin, length = PARTS[part]
    start = COUNT * SIZE  # Replaced by the victim's position below.
    with Store.open(directory, SMALL, read_only=True) as store:
        start = store.entries("orders", 0, VICTIM, 1)[0][0]
    kept = directory.with_name("kept")
    shutil.copytree(directory, kept)
    for at in range(begin, begin + length):
        shutil.rmtree(directory)
        shutil.copytree(kept, directory)
        flip_byte(log_file(directory, start - start % 4096), start % 4096 + at)
        with Store.open(directory, SMALL) as store:
            others = [i for i in range(COUNT) if i != VICTIM]
            served = []
            for i in range(store.min_offset("orders", 0), store.max_offset("orders", 0)):
                try:
                    with store.read("orders", 0, i, 1) as lease:
                        served.append(int(lease.messages()[0].body))
                except StoreCorrupt as error:
                    assert (i, error.offset) == (VICTIM, start % 4096)  # noqa: PT017 - of one offset among many
            assert [number for number in served if number != VICTIM] == others
            assert store.max_offset("orders", 0) == COUNT
            if part in SILENT:
                assert VICTIM in served
            elif part not in PARTLY:
                assert VICTIM not in served
            if VICTIM not in served and part not in ("queue id", "topic", "queue offset"):
                found = [(each.file, each.offset) for each in store.recovery.corruption]
                assert found == [(str(log_file(directory, start - start % 4096)), start % 4096)]
            assert append(store, make_record(b"%02d" % COUNT)).queue_offsets.tolist() == [COUNT]
        with Store.open(directory, SMALL) as store, store.read("orders", 0, COUNT, 1) as lease:
            assert [int(record.body) for record in lease.messages()] == [COUNT]


def derived_files(directory: Path) -> Iterator[Path]:
    yield from sorted((directory / "consumequeue" / "orders" / "0").iterdir())
    yield from sorted((directory / "index").iterdir())
    yield directory / "checkpoint"
    yield directory / "raymq" / "state.json"
    yield directory / "raymq" / "healthy"
    yield directory / "lock"


def test_cut_derived_file_is_rebuilt(closed_store: Path, tmp_path: Path, batch_code: str) -> None:
    """A derived file that is cut or lost is rebuilt from the log."""
    cuts = 6 if batch_code == "compiled" else 2
    for path in derived_files(closed_store):
        name = path.relative_to(closed_store)
        size = path.stat().st_size
        # Retention may have removed the oldest files of a queue.
        lost = () if path.name == "0" * 20 else (None,)
        for cut in (*lost, *range(0, size, max(7, size // cuts))):
            directory = tmp_path / "s"
            shutil.copytree(closed_store, directory)
            if cut is None:
                (directory / name).unlink()
            else:
                os.truncate(directory / name, cut)
            check_all_messages(directory)
            shutil.rmtree(directory)


@pytest.mark.long
def test_damaged_queue_entry_is_rebuilt(closed_store: Path, tmp_path: Path, batch_code: str) -> None:
    """Recovery rewrites entries in the part that it scans, reads rewrite older ones; a removed queue is rebuilt."""
    folder = Path("consumequeue", "orders", "0")
    for name in sorted(path.name for path in (closed_store / folder).iterdir()):
        for at in range(0, 12, 1 if batch_code == "compiled" else 3):  # the tags code contradicts nothing
            directory = tmp_path / "s"
            shutil.copytree(closed_store, directory)
            flip_byte(directory / folder / name, 3 * 20 + at)
            with Store.open(directory, SMALL) as store:
                assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (0, COUNT)
                for i in range(COUNT):
                    with store.read("orders", 0, i, 1) as lease:
                        assert [int(record.body) for record in lease.messages()] == [i]
                    assert [int(r.body) for r in store.query("orders", f"k{i:02d}", 0, 1 << 60, 5)] == [i]
            shutil.rmtree(directory / folder)
            check_all_messages(directory)
            shutil.rmtree(directory)


def test_damaged_index_header_is_rebuilt(closed_store: Path, tmp_path: Path) -> None:
    for path in sorted((closed_store / "index").iterdir()):
        for at in range(0, 40, 3):
            directory = tmp_path / "s"
            shutil.copytree(closed_store, directory)
            flip_byte(directory / path.relative_to(closed_store), at)
            check_all_messages(directory)
            shutil.rmtree(directory)


@pytest.mark.long
def test_damaged_checkpoint_loses_no_message(closed_store: Path, tmp_path: Path) -> None:
    for name, step in (("checkpoint", 1), ("raymq/state.json", 19)):
        size = (
            min(40, (closed_store / name).stat().st_size)
            if name == "checkpoint"
            else (closed_store / name).stat().st_size
        )
        for at in range(0, size, step):
            directory = tmp_path / "s"
            shutil.copytree(closed_store, directory)
            flip_byte(directory / name, at)
            check_all_messages(directory)
            shutil.rmtree(directory)


SETTINGS = ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"]


def damaged_contents(content: bytes) -> Iterator[bytes | None]:
    """Return a file's content as it is after it was lost, emptied, cut, or overwritten."""
    yield None
    yield b""
    yield from (content[:cut] for cut in range(1, len(content) - 1, max(1, len(content) // 12)))
    yield b"\0" * len(content)


def put_content(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("name", SETTINGS)
def test_damaged_settings_file_is_written_again(closed_store: Path, tmp_path: Path, name: str) -> None:
    """The tables do not come from RocketMQ's files, and a clean close writes them."""
    for damaged in damaged_contents((closed_store / "config" / name).read_bytes()):
        directory = tmp_path / "s"
        shutil.copytree(closed_store, directory)
        path = directory / "config" / name
        put_content(path, damaged)
        for offset in (30, 40):
            with Store.open(directory, SMALL) as store:
                assert store.topic_configs.get("first") is not None
                assert store.group_configs.get("first") is not None
                assert store.consumer_offsets.get("g", "orders", 0) == offset
                assert store.delay_offsets.get(1) is not None, "known, and clamped: nothing waits"
                assert store.recovery.corruption == []
                assert read_numbers(store) == list(range(COUNT))
                store.topic_configs.put(TopicConfig("again", 1, 1))
                store.group_configs.put(GroupConfig("again"))
                store.consumer_offsets.commit("g", "orders", 0, 40)
                store.delay_offsets.commit(1, 9, 0)
            assert json_file.is_as_written(path.read_bytes())
            json.loads(path.read_bytes())
        shutil.rmtree(directory)


@pytest.mark.parametrize("name", SETTINGS)
def test_damaged_settings_without_a_journal_refuse_open(directory: Path, name: str) -> None:
    """Without a state journal, RocketMQ's files are all that is known: an open must not forget them."""
    shutil.rmtree(directory / "raymq" / "state")
    for path in (directory / "config" / name, directory / "config" / f"{name}.bak"):
        path.write_bytes(b"{")
    with pytest.raises(StoreCorrupt) as caught:
        Store.open(directory, SMALL)
    assert name in caught.value.file


@pytest.mark.parametrize("number", [0, 1], ids=["older", "newest"])
def test_damaged_snapshot_costs_nothing(closed_store: Path, tmp_path: Path, number: int) -> None:
    """The newest whole snapshot counts, with all events behind it."""
    name = sorted(path.name for path in (closed_store / "raymq" / "state").glob("snapshot-*"))[number]
    for damaged in damaged_contents((closed_store / "raymq" / "state" / name).read_bytes()):
        directory = tmp_path / "s"
        shutil.copytree(closed_store, directory)
        put_content(directory / "raymq" / "state" / name, damaged)
        for expected in (1, 0):
            with Store.open(directory, SMALL) as store:
                assert {"first", "orders"} <= set(store.topic_configs.all())
                assert {"first", "orders"} <= set(store.group_configs.all())
                assert store.consumer_offsets.get("g", "orders", 0) == 30
                assert len(store.recovery.corruption) <= expected
                assert read_numbers(store) == list(range(COUNT))
        shutil.rmtree(directory)


def test_damaged_journal_keeps_intact_events(directory: Path) -> None:
    """Events before the damage are valid, and events behind it if the journal continues there."""
    store = Store.open(directory, SMALL)
    path = max((directory / "raymq" / "state").glob("journal-*"))
    begin = path.stat().st_size
    for offset in range(31, 36):
        store.consumer_offsets.commit("g", "orders", 0, offset)
    store._flusher.stop()
    store._abandon()  # as a kill leaves it
    content = path.read_bytes()
    event = (len(content) - begin) // 5
    assert len(content) == begin + 5 * event
    killed = directory.with_name("killed")
    shutil.copytree(directory, killed)
    for at in range(begin, len(content), 3):
        number = (at - begin) // event
        cut = (content[:at], 30 + number)
        is_read = number < 4 or (at - begin) % event < 4  # one wrong byte of a length is corrected
        changed = (content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :], 35 if is_read else 34)
        for damaged, expected in (cut, changed):
            shutil.rmtree(directory)
            shutil.copytree(killed, directory)
            (directory / "raymq" / "state" / path.name).write_bytes(damaged)
            for name in ("consumerOffset.json", "consumerOffset.json.bak"):
                (directory / "config" / name).unlink(missing_ok=True)
            for _ in range(2):
                with Store.open(directory, SMALL) as store:
                    assert store.consumer_offsets.get("g", "orders", 0) == expected
