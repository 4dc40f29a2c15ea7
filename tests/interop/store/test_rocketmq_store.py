"""Test that RocketMQ's store code opens RayMQ's directories, and that RayMQ continues after RocketMQ's appends."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.broker.core.transactions.half_message import HalfPosition
from raymq.actors.naming import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from raymq.actors.protocol import TransactionOutcome
from raymq.storage.errors import StoreLocked
from raymq.storage.records.body_compression import decompress
from raymq.storage.records.record import SYS_FLAG_TRANSACTION_COMMIT, Record
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.topic_config import TopicConfig
from tests import golden_stores as golden
from tests.golden_stores import FOREVER_MS
from tests.store_records import SMALL, append, make_record
from tests.unit.actors.transaction_bench import TransactionBench

PROJECT = Path(__file__).resolve().parent
CONFIG = replace(
    SMALL,
    commitlog_file_bytes=65_536,
    consume_queue_file_entries=50,
    index_slots=100,
    index_entries=400,
    store_host="127.0.0.1:10911",
)
TOPIC_QUEUES = [
    ("orders", 0),
    ("orders", 1),
    ("orders", 2),
    ("payments", 0),
    ("%RETRY%g_billing", 0),
    ("SCHEDULE_TOPIC_XXXX", 4),
]
COUNT = 900

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        shutil.which("mvn") is None or shutil.which("javac") is None,
        reason="mvn and a JDK (17 or newer) are needed to run RocketMQ's own store code",
    ),
]

Answer = dict[str, Any]


@dataclass(frozen=True)
class RocketMQ:
    """The built program; each call is one Java process that opens the directory, works and ends."""

    classpath: str
    scratch: Path

    def read(self, directory: Path, **queries: list[list[Any]]) -> Answer:
        """Read everything that `DefaultMessageStore` reads after `load()`. This may change the directory."""
        return self._run(directory, queries={"by_key": [], "by_time": [], "get": [], **queries})

    def append(self, directory: Path, messages: list[Answer]) -> list[Answer]:
        """Load, start, put, stop properly; return the results of the puts."""
        answer = self._run(directory, append=messages)
        assert answer["clean"]
        results: list[Answer] = answer["results"]
        return results

    def _run(self, directory: Path, **task: Any) -> Answer:
        result = self.scratch / "result.json"
        result.unlink(missing_ok=True)
        task |= {
            "directory": str(directory),
            "result": str(result),
            "commitlog_file_bytes": CONFIG.commitlog_file_bytes,
            "consume_queue_file_bytes": CONFIG.consume_queue_file_entries * 20,
            "index_slots": CONFIG.index_slots,
            "index_entries": CONFIG.index_entries,
        }
        (self.scratch / "task.json").write_text(json.dumps(task))
        java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={self.scratch}"]
        program = ["-cp", self.classpath, "storeinterop.Main", str(self.scratch / "task.json")]
        done = subprocess.run(
            [*java, *program], capture_output=True, text=True, timeout=120, cwd=self.scratch, check=False
        )
        assert result.exists(), done.stdout[-3000:] + done.stderr[-3000:]
        answer: Answer = json.loads(result.read_text("utf-8"))
        assert answer["loaded"], "RocketMQ refuses the directory"
        return answer


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> RocketMQ:
    build = tmp_path_factory.mktemp("build")
    shutil.copytree(PROJECT / "src", build / "src")
    shutil.copy(PROJECT / "pom.xml", build)
    maven = ["mvn", "-q", "-B", "package"]
    done = subprocess.run(maven, cwd=build, capture_output=True, text=True, timeout=500, check=False)
    if done.returncode and "Could not transfer artifact" in done.stdout + done.stderr:
        pytest.skip("rocketmq-store 5.3.3 cannot be fetched from Maven Central")
    assert done.returncode == 0, done.stdout + done.stderr
    return RocketMQ(f"{build}/target/store-interop.jar:{build}/target/lib/*", tmp_path_factory.mktemp("java"))


def fill(store: Store, first: int, count: int) -> None:
    """Store messages of all kinds: singly and in batches, with and without tags, keys, IPv6 hosts, compressed flags."""
    number = first
    while number < first + count:
        batch = []
        for _ in range(1 if number % 5 else 60):
            topic, queue_id = TOPIC_QUEUES[number % len(TOPIC_QUEUES)]
            batch.append(
                make_record(
                    bytes([number % 251]) * (1 + number * 7 % 900),
                    topic=topic,
                    queue_id=queue_id,
                    tags=(None, "paid", "标签", "Aa")[number % 4],
                    keys=(None, f"k{number}", f"Aa common k{number}", "BB", f"ключ-{number}")[number % 5],
                    unique_key=f"7F0000010000{number:020d}",
                    born_host=("::1", 4321) if number % 11 == 0 else ("127.0.0.1", 1234),
                    flag=number % 3,
                    reconsume_times=number % 2,
                    # RocketMQ makes a waiting message's entry (its due time) from this property, so each has it.
                    delay_level=queue_id + 1 if topic == "SCHEDULE_TOPIC_XXXX" else None,
                )
            )
            number += 1
        append(store, *batch)


def settings(store: Store) -> None:
    store.topic_configs.put(TopicConfig("orders", 3, 3, 6, True, {"message.type": "FIFO"}))
    store.topic_configs.put(TopicConfig("payments", 1, 1))
    store.group_configs.put(GroupConfig("g_billing", retry_max_times=3, consume_broadcast_enable=False))
    for queue_id in range(3):
        store.consumer_offsets.commit("g_billing", "orders", queue_id, 10 + queue_id)
    store.delay_offsets.commit(5, 7, store.max_physical_offset)


def record_as_java(record: Record) -> Answer:
    """Return a record in the Java program's form."""
    content = decompress(record.body, record.sys_flag)
    return {
        **golden.record_fields(record),
        "content_length": len(content),
        "content_sha256": hashlib.sha256(content).hexdigest(),
        "properties": record.properties,
    }


def compare(store: Store, rocketmq: RocketMQ, copy: Path) -> None:
    """Compare everything that both can read from the same bytes."""
    compare_settings(store, compare_messages(store, rocketmq, copy))


def compare_messages(store: Store, rocketmq: RocketMQ, copy: Path) -> Answer:
    """Compare the messages that both read from the same bytes; return what RocketMQ read."""
    records = list(store.walk(0))
    topic_queues = {(topic, queue_id) for topic in store.topics() for queue_id in store.queues(topic)}
    times = sorted({record.store_timestamp_ms for record in records})
    moments = [0, times[0] - 1, *times[:: max(1, len(times) // 20)], times[-1], times[-1] + 1]
    by_time = [[topic, queue_id, moment] for topic, queue_id in sorted(topic_queues) for moment in moments]
    keys = sorted({(record.topic, key) for record in records[::9] for key in [*record.keys, record.unique_key] if key})
    by_key = [[topic, key, 0, FOREVER_MS, 64] for topic, key in [*keys, ("orders", "nothing")]]
    get = [
        [topic, queue_id, offset, 8]
        for topic, queue_id in sorted(topic_queues)
        for offset in (-1, 0, 13, store.max_offset(topic, queue_id), store.max_offset(topic, queue_id) + 1)
    ]
    theirs = rocketmq.read(copy, by_time=by_time, by_key=by_key, get=get)

    assert theirs["min_physical_offset"] == store.min_physical_offset
    assert theirs["max_physical_offset"] == store.max_physical_offset
    assert {(queue["topic"], queue["queue"]) for queue in theirs["queues"]} == topic_queues
    for queue in theirs["queues"]:
        at = queue["topic"], queue["queue"]
        assert (queue["min"], queue["max"]) == (store.min_offset(*at), store.max_offset(*at))
        entries = store.entries(*at, queue["min"], 1 << 20)
        assert queue["entries"] == [list(entry) for entry in zip(*(part.tolist() for part in entries), strict=True)]
    assert theirs["messages"] == [record_as_java(record) for record in records]
    for (topic, queue_id, moment), (lower, upper) in zip(by_time, theirs["by_time"], strict=True):
        assert store.offset_at_time(topic, queue_id, moment) == lower
        assert store.offset_at_time(topic, queue_id, moment, boundary="upper") == upper
    for (topic, key, begin, end, limit), found in zip(by_key, theirs["by_key"], strict=True):
        ours = [record.physical_offset for record in store.query(topic, key, begin, end, limit)]
        # RocketMQ's limit also counts keys of equal hash (`Aa`, `BB`), and its clients filter these.
        kept = [place for place in sorted(set(found), reverse=True) if place in ours or len(found) == limit]
        assert set(ours) <= set(found) or len(found) == limit
        assert len(found) == limit or kept == ours
    for (topic, queue_id, offset, _), found in zip(get, theirs["get"], strict=True):
        minimum, maximum = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        statuses = {maximum: "OFFSET_OVERFLOW_ONE", maximum + 1: "OFFSET_OVERFLOW_BADLY"}
        assert found["status"] == ("OFFSET_TOO_SMALL" if offset < minimum else statuses.get(offset, "FOUND"))
        if found["status"] == "FOUND":
            with store.read(topic, queue_id, offset, 8) as lease:
                assert [record.physical_offset for record in lease.messages()] == found["physical_offsets"]
    return theirs


def compare_settings(store: Store, theirs: Answer) -> None:
    topics = theirs["topics"]["topicConfigTable"]
    assert topics.keys() == store.topic_configs.all().keys()
    for name, topic in store.topic_configs.all().items():
        numbers = (topics[name]["readQueueNums"], topics[name]["writeQueueNums"], topics[name]["perm"])
        assert numbers == (topic.read_queues, topic.write_queues, topic.perm)
        assert (topics[name]["order"], topics[name]["attributes"]) == (topic.order, dict(topic.attributes))
    groups = theirs["groups"]["subscriptionGroupTable"]
    assert groups.keys() == store.group_configs.all().keys()
    for name, group in store.group_configs.all().items():
        assert groups[name]["retryMaxTimes"] == group.retry_max_times
        assert groups[name]["consumeBroadcastEnable"] == group.consume_broadcast_enable
    if "consumer_offsets" in theirs:  # in a killed store they are in RayMQ's journal
        assert theirs["consumer_offsets"]["offsetTable"] == {"orders@g_billing": {"0": 10, "1": 11, "2": 12}}
        assert theirs["delay_offsets"]["offsetTable"] == {"5": 7}


def write_and_be_killed(directory: Path) -> None:
    """Run a process that fills the store, reports it and is killed."""
    program = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(PROJECT.parents[2])!r})
        from tests.interop.store import test_rocketmq_store as own
        from raymq.storage.store import Store
        store = Store.open({str(directory)!r}, own.CONFIG)
        own.settings(store)
        store.topic_configs.save()  # As a broker does every few seconds; until then they are in our journal.
        store.group_configs.save()
        own.fill(store, 0, own.COUNT)
        print("ready", flush=True)
        sys.stdin.read()
        """
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()


def message_to_put(number: int) -> Answer:
    """Return a message for RocketMQ to put."""
    topic, queue_id = TOPIC_QUEUES[number % 4]
    return {
        "topic": topic,
        "queue": queue_id,
        "body": f"from java {number} " * (1 + number % 40),
        "flag": number % 3,
        "born_timestamp": 1_700_000_000_000 + number,
        "properties": {"TAGS": "标签", "KEYS": f"java-{number} Aa", "UNIQ_KEY": f"7F0000011111{number:020d}", "a": "b"},
    }


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.long)], ids=["closed", "killed"])
def test_rocketmq_and_raymq_read_each_others_messages(tmp_path: Path, rocketmq: RocketMQ, killed: bool) -> None:
    directory, copy = tmp_path / "store", tmp_path / "copy"
    if killed:
        write_and_be_killed(directory)
        assert (directory / "abort").exists()
    else:
        with Store.open(directory, CONFIG) as store:
            settings(store)
            fill(store, 0, COUNT)
    assert len(list((directory / "commitlog").iterdir())) > 3
    assert len(list((directory / "index").iterdir())) > 3

    shutil.copytree(directory, copy)
    if killed:  # RayMQ reads the recovered store; RocketMQ recovers the same bytes by itself.
        reference = tmp_path / "reference"
        shutil.copytree(directory, reference)
        with Store.open(reference, CONFIG) as store:
            compare(store, rocketmq, copy)
    else:
        with Store.open(directory, CONFIG, read_only=True) as store:
            compare(store, rocketmq, copy)

    # RocketMQ continues after RayMQ's messages ...
    with Store.open(directory, CONFIG) as store:
        maxima = {at: store.max_offset(*at) for at in TOPIC_QUEUES}
        end = store.max_physical_offset
    added = [message_to_put(number) for number in range(300)]
    results = rocketmq.append(directory, added)
    for put, result in zip(added, results, strict=True):
        at = put["topic"], put["queue"]
        assert (result["status"], result["queue_offset"]) == ("PUT_OK", maxima[at])
        maxima[at] += 1
    # ... and RayMQ after RocketMQ's.
    with Store.open(directory, CONFIG) as store:
        assert store.recovery.clean
        assert (store.recovery.truncated_bytes, store.recovery.corruption) == (0, [])
        assert store.max_physical_offset > end
        assert {at: store.max_offset(*at) for at in TOPIC_QUEUES} == maxima
        for put, result in zip(added, results, strict=True):
            record = store.read_at(result["physical_offset"])
            assert (record.body.decode(), record.properties) == (put["body"], put["properties"])
            assert (record.queue_offset, record.message_id) == (result["queue_offset"], result["message_id"])
            for key in (put["properties"]["UNIQ_KEY"], put["properties"]["KEYS"].split()[0]):
                found = store.query(put["topic"], key, 0, FOREVER_MS, 9)
                assert [hit.physical_offset for hit in found] == [result["physical_offset"]]
        fill(store, COUNT, 200)
    shutil.rmtree(copy)
    shutil.copytree(directory, copy)
    with Store.open(directory, CONFIG, read_only=True) as store:
        assert len(list(store.walk(0))) >= COUNT + 300 + 200
        compare(store, rocketmq, copy)


def test_rocketmq_reads_store_without_expired_files(tmp_path: Path, rocketmq: RocketMQ) -> None:
    directory, copy = tmp_path / "store", tmp_path / "copy"
    now_ms = 1_800_000_000_000
    with Store.open(directory, replace(CONFIG, delete_at_hour="*"), now_ms=lambda: now_ms) as store:
        settings(store)
        append(store, *[make_record(b"old", topic="idle", unique_key=f"I{i}", keys="idle") for i in range(70)])
        for first in range(0, COUNT, 50):
            fill(store, first, 50)
            now_ms += 10_000
        store.flush()
        now_ms += 72 * 3_600_000 - 100_000
        while store.delete_expired().log_files:
            assert store.wait_for_removals(60)
        assert 0 < store.min_physical_offset < store.max_physical_offset
        assert store.min_offset("idle", 0) == store.max_offset("idle", 0) == 70
        assert {store.min_offset(*at) for at in TOPIC_QUEUES[:3]} != {0}
    shutil.copytree(directory, copy)
    with Store.open(directory, CONFIG, read_only=True) as store:
        compare(store, rocketmq, copy)
    results = rocketmq.append(
        directory, [message_to_put(number) | {"topic": "idle", "queue": 0} for number in range(3)]
    )
    assert [result["queue_offset"] for result in results] == [70, 71, 72]
    with Store.open(directory, CONFIG) as store:
        assert (store.min_offset("idle", 0), store.max_offset("idle", 0)) == (70, 73)


def open_by_rocketmqs_rule(messages: list[Record], offset: int) -> set[int]:
    """Return the halves from `offset` on that no operation record lists, as RocketMQ's check service finds them."""
    listed = [int(text) for each in messages if each.topic == OP_HALF_TOPIC for text in each.body.split(b",") if text]
    halves = {each.queue_offset for each in messages if each.topic == HALF_TOPIC and each.queue_offset >= offset}
    return halves - set(listed)


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_rocketmq_and_raymq_read_each_others_transactions(tmp_path: Path, rocketmq: RocketMQ, killed: bool) -> None:
    directory, copy = tmp_path / "store", tmp_path / "copy"
    bench = TransactionBench(directory, replace(CONFIG, transaction_check_max=1))
    bench.core.topics.create("orders", 3)
    halves = [bench.prepare(b"half %d" % number * 40, number % 3, KEYS=f"k{number}") for number in range(240)]
    bench.clock.now += 7
    assert bench.ask() == list(range(240))
    for half in halves:
        if half.queue_offset % 4 < 2:
            outcome = TransactionOutcome.COMMIT if half.queue_offset % 4 else TransactionOutcome.ROLLBACK
            bench.end(half, outcome)
    for number in range(240, 260):
        bench.prepare(b"late %d" % number)
    bench.clock.now += 31
    assert bench.ask() == list(range(240, 260))  # The older ones are given up.
    bench.store.flush()
    bench.core.transactions.save()
    expected = set(bench.open_offsets())
    assert expected == set(range(240, 260))
    bench.prepare(b"last")
    if killed:
        bench.crash()
    bench.store.close()
    shutil.copytree(directory, copy)
    with Store.open(directory, CONFIG, read_only=True) as store:
        theirs = compare_messages(store, rocketmq, copy)
        records = list(store.walk(0))
    progress = theirs["consumer_offsets"]["offsetTable"][f"{HALF_TOPIC}@{TRANSACTION_GROUP}"]["0"]
    assert progress == 240
    assert open_by_rocketmqs_rule(records, progress) == expected | {260}
    commits = [each for each in theirs["messages"] if each["prepared_transaction_offset"]]
    assert len(commits) == 60
    assert {each["sys_flag"] for each in commits} == {SYS_FLAG_TRANSACTION_COMMIT}

    # RocketMQ stores two halves and the end of the first, and RayMQ goes on.
    waiting = {"TRAN_MSG": "true", "PGROUP": "shop", "REAL_TOPIC": "orders", "REAL_QID": "1"}
    put = [
        message_to_put(number)
        | {"topic": HALF_TOPIC, "queue": 0, "properties": waiting | {"UNIQ_KEY": f"java-{number}"}}
        for number in range(2)
    ]
    put.append(message_to_put(2) | {"topic": OP_HALF_TOPIC, "queue": 0, "body": "261,", "properties": {"TAGS": "d"}})
    stored = rocketmq.append(directory, put)
    assert [each["queue_offset"] for each in stored[:2]] == [261, 262]
    bench.open()
    assert bench.store.recovery.clean
    assert set(bench.open_offsets()) == expected | {260, 262}
    bench.end(HalfPosition(262, stored[1]["physical_offset"]), TransactionOutcome.COMMIT)
    assert bench.bodies("orders", 1)[-1] == put[1]["body"].encode()
    bench.store.close()


def test_directory_lock_excludes_rocketmq_and_raymq(tmp_path: Path, rocketmq: RocketMQ) -> None:
    directory = tmp_path / "store"
    with Store.open(directory, CONFIG) as store:
        fill(store, 0, 10)
        with pytest.raises(AssertionError, match="Lock failed"):
            rocketmq.append(directory, [message_to_put(0)])
    # RocketMQ itself locks by a record lock of another process.
    program = textwrap.dedent(
        f"""
        import fcntl, sys
        held = open({str(directory / "lock")!r}, "r+")
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        print("held", flush=True)
        sys.stdin.read()
        """
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreLocked) as caught:
            Store.open(directory, CONFIG)
        assert caught.value.pid == holder.pid != os.getpid()
    finally:
        holder.communicate("")
