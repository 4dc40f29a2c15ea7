"""Test damage to a real broker's directory: RayMQ loses no message where RocketMQ's recovery loses or hides some.

Each test names what RocketMQ 5.3.3 does with the same damage (tried on copies of the same directory).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raymq.storage.errors import StoreCorrupt
from raymq.storage.store import Store
from tests import golden_stores as golden
from tests.golden_stores import Answers
from tests.store_records import append, flip_byte, log_file, make_record

pytestmark = pytest.mark.crash

CONFIG = golden.config("clean")
FILE = CONFIG.commitlog_file_bytes
MESSAGES: list[Answers] = golden.answers("clean")["messages"]
END: int = golden.answers("clean")["max_physical_offset"]


@pytest.fixture(params=["clean", "with abort"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Unpack the directory `clean`, as left by a stop, or as if its broker had been killed."""
    unpacked = golden.unpack("clean", tmp_path)
    if request.param == "with abort":
        (unpacked / "abort").write_text("4711")
    return unpacked


def open_store(directory: Path) -> Store:
    return Store.open(directory, CONFIG)


def check_messages(store: Store, messages: list[Answers], damaged: Answers | None = None) -> None:
    """Check that exactly these are found by offset and key; a damaged message keeps its offset."""
    maxima: dict[tuple[str, int], int] = {}
    for message in messages:
        at = message["topic"], message["queue"]
        maxima[at] = max(maxima.get(at, 0), message["queue_offset"] + 1)
        if message is damaged:
            continue
        with store.read(*at, message["queue_offset"], 1) as lease:
            assert [record.physical_offset for record in lease.messages()] == [message["physical_offset"]]
        assert not message["unique_key"] or golden.is_found_by(store, message["unique_key"], message)
    found_maxima = {(t, q): store.max_offset(t, q) for t in store.topics() for q in store.queues(t)}
    assert {at: maximum for at, maximum in found_maxima.items() if maximum} == maxima


def check_append_and_reopen(store: Store) -> None:
    """Append, close and open: offsets are dense, and nothing needs repair."""
    maxima = {queue_id: store.max_offset("orders", queue_id) for queue_id in store.queues("orders")}
    for queue_id, maximum in maxima.items():
        assert append(store, make_record(queue_id=queue_id)).queue_offsets.tolist() == [maximum]
    directory = store.directory
    store.close()
    with open_store(directory) as again:
        assert again.recovery.clean
        assert (again.recovery.truncated_bytes, again.recovery.corruption) == (0, [])
        assert {q: again.max_offset("orders", q) for q in again.queues("orders")} == {
            queue_id: maximum + 1 for queue_id, maximum in maxima.items()
        }


def clear_queue_entries_from(directory: Path, place: int) -> None:
    """Clear the queue entries of all messages from `place` on, as if they had not been written in time."""
    for message in MESSAGES:
        if message["physical_offset"] >= place:
            at = message["queue_offset"] * 20
            folder = directory / "consumequeue" / message["topic"] / str(message["queue"])
            with (folder / f"{at - at % 1200:020d}").open("r+b") as stream:
                stream.seek(at % 1200)
                stream.write(bytes(20))


def remove_queue(directory: Path) -> None:
    """RocketMQ: not rebuilt; the queue begins at 0 again."""
    shutil.rmtree(directory / "consumequeue" / "payments" / "0")


def remove_topic_queues(directory: Path) -> None:
    """RocketMQ: not rebuilt."""
    shutil.rmtree(directory / "consumequeue" / "orders")


def remove_all_queues(directory: Path) -> None:
    """RocketMQ: rebuilt without `abort`, from the recovery file on with it."""
    shutil.rmtree(directory / "consumequeue")


def remove_index(directory: Path) -> None:
    """RocketMQ: never rebuilt after a clean stop, only from the recovery file on after a kill."""
    shutil.rmtree(directory / "index")


def remove_derived_files(directory: Path) -> None:
    """RocketMQ: queues without `abort`; the index never."""
    for name in ("consumequeue", "index"):
        shutil.rmtree(directory / name)
    (directory / "checkpoint").unlink()


def clear_last_queue_entry(directory: Path) -> None:
    """RocketMQ without `abort`: skips exactly this message, all later offsets of its queue are one too low."""
    clear_queue_entries_from(directory, MESSAGES[-1]["physical_offset"])


def clear_last_40_queue_entries(directory: Path) -> None:
    """RocketMQ without `abort`: skips the first of them."""
    clear_queue_entries_from(directory, MESSAGES[-40]["physical_offset"])


def clear_middle_queue_entry(directory: Path) -> None:
    """RocketMQ: truncates the queue there, deletes its later files; the messages are not dispatched again."""
    path = directory / "consumequeue" / "payments" / "0" / f"{1200:020d}"
    content = bytearray(path.read_bytes())
    content[200:220] = bytes(20)
    path.write_bytes(content)


def add_foreign_file_to_log(directory: Path) -> None:
    """RocketMQ: refuses to start (NumberFormatException)."""
    (directory / "commitlog" / "x.tmp").write_text("foreign")


def add_foreign_file_to_queue(directory: Path) -> None:
    """RocketMQ: refuses to start."""
    (directory / "consumequeue" / "orders" / "0" / "notes").write_text("foreign")


def zero_checkpoint(directory: Path) -> None:
    """RocketMQ: recovers from the first file if `abort` exists."""
    (directory / "checkpoint").write_bytes(bytes(4096))


def shorten_checkpoint(directory: Path) -> None:
    """RocketMQ: accepts 40 bytes."""
    (directory / "checkpoint").write_bytes((directory / "checkpoint").read_bytes()[:40])


def remove_settings(directory: Path) -> None:
    """RocketMQ: starts, without topics and offsets."""
    shutil.rmtree(directory / "config")


@pytest.mark.sweep(every=12)
@pytest.mark.parametrize(
    "damage",
    [
        remove_queue,
        remove_topic_queues,
        remove_all_queues,
        remove_index,
        remove_derived_files,
        clear_last_queue_entry,
        clear_last_40_queue_entries,
        clear_middle_queue_entry,
        add_foreign_file_to_log,
        add_foreign_file_to_queue,
        zero_checkpoint,
        shorten_checkpoint,
        remove_settings,
    ],
)
def test_damage_outside_log_files_loses_no_message(directory: Path, damage: Callable[[Path], None]) -> None:
    damage(directory)
    store = open_store(directory)
    assert (store.recovery.truncated_bytes, store.recovery.corruption) == (0, [])
    check_messages(store, MESSAGES)
    check_append_and_reopen(store)


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("number", [len(MESSAGES) - 2, len(MESSAGES) - 30, 0, 200, 500])
def test_damaged_body_hides_only_its_message(directory: Path, number: int) -> None:
    """RocketMQ: in the last file the log ends there and later records are dropped; an earlier one is served."""
    damaged = MESSAGES[number]
    place = damaged["physical_offset"]
    file = log_file(directory, place - place % FILE)
    flip_byte(file, place % FILE + 88 + 12 * (damaged["sys_flag"] == 16))
    store = open_store(directory)
    assert [(c.file, c.offset) for c in store.recovery.corruption] == [(str(file), place % FILE)]
    assert store.recovery.truncated_bytes == 0
    assert store.max_physical_offset == END
    check_messages(store, MESSAGES, damaged)
    with pytest.raises(StoreCorrupt) as caught:
        store.read(damaged["topic"], damaged["queue"], damaged["queue_offset"])
    assert (caught.value.file, caught.value.offset) == (str(file), place % FILE)
    store.close()


def test_half_written_last_record_is_truncated(directory: Path) -> None:
    """RocketMQ: truncated, one message less. RayMQ does the same."""
    last = MESSAGES[-1]
    path = log_file(directory, END - END % FILE)
    content = path.read_bytes()
    half = last["physical_offset"] % FILE + last["size"] // 2
    path.write_bytes(content[:half].ljust(FILE, b"\0"))
    store = open_store(directory)
    assert store.recovery.corruption == []
    assert store.recovery.truncated_bytes > 0
    check_messages(store, MESSAGES[:-1])
    check_append_and_reopen(store)


@pytest.mark.parametrize("size", [None, 0])
def test_lost_last_log_file_ends_log_before_it(directory: Path, size: int | None) -> None:
    """RocketMQ: starts, the log ends before it and the queues are truncated. RayMQ does the same."""
    start = END - END % FILE
    log_file(directory, start).unlink()
    if size is not None:
        log_file(directory, start).write_bytes(bytes(size))
    store = open_store(directory)
    check_messages(store, [message for message in MESSAGES if message["physical_offset"] < start])
    check_append_and_reopen(store)


def check_refused_until_restored(directory: Path, path: Path, content: bytes) -> None:
    """Check that the error names the file, and that the store opens after the file is restored."""
    with pytest.raises(StoreCorrupt) as caught:
        open_store(directory)
    assert caught.value.file == str(path)
    path.write_bytes(content)
    with open_store(directory) as store:
        check_messages(store, MESSAGES)


def test_lost_middle_log_file_refuses_open(directory: Path) -> None:
    """RocketMQ: starts and fails reads there. RayMQ refuses and names the file, which may be restored."""
    missing = log_file(directory, 2 * FILE)
    content = missing.read_bytes()
    missing.unlink()
    check_refused_until_restored(directory, missing, content)


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_file_of_wrong_size_refuses_open(directory: Path, kind: str) -> None:
    """RocketMQ: refuses to start. RayMQ names the file, refuses too, and changes nothing."""
    path = log_file(directory, FILE)
    if kind == "queue":
        path = directory / "consumequeue" / "payments" / "0" / f"{1200:020d}"
    content = path.read_bytes()
    path.write_bytes(content + b"\0")
    check_refused_until_restored(directory, path, content)


def test_store_without_log_files_starts_empty(directory: Path) -> None:
    """RocketMQ: deletes the queues and starts empty. RayMQ starts empty, too."""
    shutil.rmtree(directory / "commitlog")
    with open_store(directory) as store:
        assert store.max_physical_offset == 0
        assert append(store, make_record()).queue_offsets.tolist() == [0]


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("file", ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"])
@pytest.mark.parametrize("content", [b"", b'{"dataVersion":{', b"\0" * 200])
def test_broken_settings_file_is_read_from_backup(directory: Path, file: str, content: bytes) -> None:
    """RocketMQ: reads `.bak`; if both are broken it refuses. RayMQ does the same."""
    path = directory / "config" / file
    expected = golden.answers("clean")
    path.write_bytes(content)
    both_broken = shutil.copytree(directory, directory.with_name("both broken"))
    (both_broken / "config" / f"{file}.bak").write_bytes(content)
    with pytest.raises(StoreCorrupt):
        open_store(both_broken)
    with open_store(directory) as store:
        assert store.topic_configs.all().keys() == expected["topics"].keys()
        assert store.group_configs.all().keys() == expected["groups"].keys()
        assert store.consumer_offsets.of("g_push", "payments") == {0: 164, 1: 100}
        assert store.delay_offsets.get(1) is not None
    path.write_bytes(content)
    path.with_name(f"{file}.bak").write_bytes(content)
    with open_store(directory) as store:  # it is only a copy now
        assert store.consumer_offsets.of("g_push", "payments") == {0: 164, 1: 100}


def test_undispatched_messages_are_added_to_queues(tmp_path: Path) -> None:
    """`killed`: 135 acknowledged messages are only in the log. RocketMQ loses keys of older files in that case."""
    expected = golden.answers("killed")
    directory = golden.unpack("killed", tmp_path)
    dispatched = sum(queue["entries"] for queue in expected["raw"]["consumequeue"])
    assert len(expected["messages"]) - dispatched == 135
    with Store.open(directory, golden.config("killed")) as store:
        assert not store.recovery.clean
        check_messages(store, expected["messages"])
        assert sum(store.max_offset(t, q) for t in store.topics() for q in store.queues(t)) == dispatched + 135
        check_append_and_reopen(store)
    # The file that the broker had allocated ahead was empty; it is used or removed, and not reported as damage.
    assert not list((directory / "raymq").glob("damaged/*"))


@pytest.mark.parametrize(
    "damage", [remove_queue, remove_all_queues, remove_index, remove_derived_files, clear_last_40_queue_entries]
)
def test_read_only_open_rebuilds_missing_data_in_memory(directory: Path, damage: Callable[[Path], None]) -> None:
    damage(directory)
    before = golden.fingerprints(directory)
    with Store.open(directory, CONFIG, read_only=True) as store:
        check_messages(store, MESSAGES)
    assert golden.fingerprints(directory) == before
