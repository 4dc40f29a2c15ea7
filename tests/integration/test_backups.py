"""Test backups of running brokers to a path and to S3, and the backup commands."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raymq.actors.wire.commands import backup_commands as commands
from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.client.errors import BrokerUnavailable
from raymq.cluster import backup_store, list_backups, restore_store, verify_backups
from raymq.cluster import store_backup as module
from raymq.cluster.cli import main_group
from raymq.cluster.store_backup import RunningBrokerSource
from raymq.storage.backup.backup_progress import BackupProgress
from raymq.storage.backup.backup_target import FolderTarget
from raymq.storage.backup.backup_writer import create_backup
from raymq.storage.config import StoreConfig
from raymq.storage.errors import BackupFailed, StoreLocked
from raymq.storage.files import file_calls
from raymq.storage.store import Store
from tests.integration.conftest import LOG_FILE_BYTES, Services
from tests.polling import poll_until
from tests.store_records import bodies

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)


def send(mq: Connection, *texts: str) -> None:
    with Producer(mq, "p") as producer:
        producer.send_batch([Message("t", text.encode()) for text in texts], queue=QUEUE)


def open_store(directory: Path) -> Store:
    return Store.open(
        directory, StoreConfig(commitlog_file_bytes=LOG_FILE_BYTES, index_slots=1_000, index_entries=100_000)
    )


def test_backup_of_busy_broker_is_consistent_snapshot(
    services: Services, mq: Connection, admin: Admin, tmp_path: Path
) -> None:
    """The backup has all messages acknowledged before it, and no committed offset beyond its messages."""
    over, sent, committed = threading.Event(), [0], [0]

    def produce() -> None:
        with Producer(mq, "p") as producer, PullConsumer(mq, "g") as pull:
            while not over.is_set():
                result = producer.send(Message("t", b"%d" % sent[0]), queue=QUEUE)
                sent[0] += 1
                pull.commit(QUEUE, result.queue_offset + 1)
                committed[0] = result.queue_offset + 1

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(produce)
        try:
            for number in range(4):
                poll_until(lambda so_far=sent[0]: sent[0] > so_far + 50)
                before, done = sent[0], committed[0]
                report = backup_store(services.directory / "broker-a", tmp_path / "target", name=f"b{number}")
                restore_store(tmp_path / "target", tmp_path / f"r{number}")
                with open_store(tmp_path / f"r{number}") as store:
                    found = bodies(store, "t", 0)
                    offset = store.consumer_offsets.get("g", "t", 0)
                assert found == [b"%d" % each for each in range(len(found))]
                assert len(found) >= before
                assert offset is not None
                assert done <= offset <= len(found)
                assert offset >= len(found) - 1, "a moment: the commit of all but the last message was before it"
                assert report.log_begin == 0 < report.log_end
        finally:
            over.set()
        working.result(10)
    assert len({extent.object for each in list_backups(tmp_path / "target") for extent in each.extents()}) > 4
    assert verify_backups(tmp_path / "target").bad == []


def test_backup_lease_ends_with_backup_or_connection(
    services: Services, mq: Connection, admin: Admin, tmp_path: Path
) -> None:
    backups = services.brokers["broker-a"].core.backups
    plain = file_calls.current
    address = services.brokers["broker-a"].address
    send(mq, "a")
    with Connection([address]) as dying:
        commands.read_begun(dying.run(dying.pool.request(address, commands.begin_command(), 5.0)))
        assert backups.retained_from() == 0
        with pytest.raises(BackupFailed, match="another backup"):
            backup_store(services.directory / "broker-a", tmp_path / "target")
    poll_until(lambda: backups.retained_from() is None)
    backup_store(services.directory / "broker-a", tmp_path / "target")
    poll_until(lambda: backups.retained_from() is None)
    assert file_calls.current is plain


def test_backup_fails_when_lease_is_lost(
    services: Services, mq: Connection, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.02)
    send(mq, "a")
    directory = services.directory / "broker-a"
    with RunningBrokerSource(directory, None, StoreLocked(directory, 1)) as source:
        services.loop.run(_end_backup(services))
        poll_until(lambda: source._failure is not None)
        with pytest.raises(BackupFailed, match="no longer retains"):
            create_backup(source, FolderTarget(tmp_path / "target"))
    assert FolderTarget(tmp_path / "target").names() == []


def test_backup_fails_when_lease_is_lost_before_manifest(
    services: Services, mq: Connection, admin: Admin, tmp_path: Path
) -> None:
    """Between two renewals: the manifest is written only if the lease held until then."""
    send(mq, "a")
    directory = services.directory / "broker-a"
    with RunningBrokerSource(directory, None, StoreLocked(directory, 1)) as source:

        def lose(progress: BackupProgress) -> None:
            if progress.path.startswith("commitlog/"):
                services.loop.run(_end_backup(services))

        with pytest.raises(BackupFailed, match="no longer retains"):
            create_backup(source, FolderTarget(tmp_path / "target"), progress=lose)
    assert FolderTarget(tmp_path / "target").names() == []


async def _end_backup(services: Services) -> None:
    services.brokers["broker-a"].core.backups.end()
    await asyncio.sleep(0)


def test_backup_error_names_disk_use_of_retention(
    services: Services, mq: Connection, admin: Admin, tmp_path: Path
) -> None:
    send(mq, "a")
    directory = services.directory / "broker-a"
    with RunningBrokerSource(directory, None, StoreLocked(directory, 1)) as source:
        shutil.copytree(directory, tmp_path / "copy")
        source.directory = tmp_path / "copy"
        next((tmp_path / "copy" / "commitlog").iterdir()).unlink()
        with pytest.raises(BackupFailed, match="85 %"):
            create_backup(source, FolderTarget(tmp_path / "target"))


def test_backup_of_copied_directory_in_use_fails(
    services: Services, mq: Connection, admin: Admin, tmp_path: Path
) -> None:
    del admin
    send(mq, "a")
    directory = services.directory / "broker-a"
    shutil.copytree(directory, tmp_path / "copy")
    with open_store(tmp_path / "copy"), pytest.raises(BrokerUnavailable, match="another directory"):
        backup_store(tmp_path / "copy", tmp_path / "target")
    for name in ("broker.json", "broker.json.bak"):
        (tmp_path / "copy" / "raymq" / name).unlink()
    with open_store(tmp_path / "copy"), pytest.raises(BrokerUnavailable, match="not known"):
        backup_store(tmp_path / "copy", tmp_path / "target")


def run_store_command(*arguments: object, code: int = 0) -> Any:
    result: Result = CliRunner().invoke(main_group, ["store", *map(str, arguments), "--json"], standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_store_commands_backup_verify_and_restore(
    services: Services, mq: Connection, admin: Admin, tmp_path: Path
) -> None:
    send(mq, "a", "b")
    directory, target = services.directory / "broker-a", tmp_path / "target"
    made = run_store_command("backup", directory, target, "--name", "one")
    assert made.keys() == {"name", "log_begin", "log_end", "files", "bytes", "copied_bytes", "gone"}
    assert run_store_command("backup", directory, target, "--keep", "1")["gone"] == ["one"]
    (listed,) = run_store_command("backups", target)
    assert listed["broker"] == "broker-a"
    assert run_store_command("verify", target)["bad"] == []
    assert run_store_command("verify", target, "--at", listed["name"])["backups"] == 1
    dry = run_store_command("restore", target, tmp_path / "restored", "--dry-run")
    assert (dry["restored"], (tmp_path / "restored").exists()) == (False, False)
    assert run_store_command("restore", target, tmp_path / "restored", "--new-address")["restored"]
    assert run_store_command("verify", tmp_path / "restored")["records"] >= 2
    damaged = max((path for path in target.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    damaged.write_bytes(b"x")
    assert {each["object"] for each in run_store_command("verify", target, code=1)["bad"]} == {str(damaged)}


def test_documented_restore_drill_works(services: Services, mq: Connection, admin: Admin, tmp_path: Path) -> None:
    """Run the documented commands, start a broker on the restored store, and read the same messages."""
    text = (Path(__file__).parents[2] / "docs" / "backup.md").read_text("utf-8").partition("## Drill")[2]
    lines = text.split("```")[1].strip().splitlines()
    assert [line.split()[2] for line in lines] == ["backup", "verify", "restore", "verify"]
    send(mq, "a", "b")
    places = {"data/": f"{services.directory}/", "/backups/": f"{tmp_path}/backups/", "drill/": f"{tmp_path}/drill/"}
    for line in lines:
        words = shlex.split(line)[2:]
        run_store_command(
            *(
                next((to + word[len(start) :] for start, to in places.items() if word.startswith(start)), word)
                for word in words
            )
        )
    drill = Services(tmp_path / "drill", names=("broker-a",))
    drill.start()
    try:
        assert drill.brokers["broker-a"].address != services.brokers["broker-a"].address
        with (
            Connection([drill.name_server.address]) as copied,
            PullConsumer(copied, "g") as pull,
            Admin(copied) as there,
        ):
            assert there.topics() == admin.topics()
            pull.seek(QUEUE, 0)
            assert [each.body for each in pull.poll(QUEUE, 10, timeout=5.0)] == [b"a", b"b"]
    finally:
        drill.stop()


def replace_path(word: str, places: dict[str, str]) -> str:
    """Replace the documented path in a word of a command by a path of this test."""
    return next((to + word.removeprefix(start) for start, to in places.items() if word.startswith(start)), word)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the address of a bucket on an S3 server in this process."""
    server_of = pytest.importorskip("moto.server", reason="moto is not installed (extra dev)")
    boto3 = pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_of.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1").create_bucket(Bucket="backups")
    yield f"s3://backups/broker-a?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    server.stop()


def test_backups_in_s3(services: Services, mq: Connection, admin: Admin, bucket: str, tmp_path: Path) -> None:
    send(mq, *("x" * 1_000 for _ in range(200)))
    directory = services.directory / "broker-a"
    first = backup_store(directory, bucket)
    send(mq, "more")
    second = backup_store(directory, bucket)
    assert second.copied_bytes > 0
    assert [each.name for each in list_backups(bucket)] == [first.name, second.name]
    assert verify_backups(bucket).bad == []
    restore_store(bucket, tmp_path / "restored")
    with open_store(tmp_path / "restored") as store:
        assert bodies(store, "t", 0)[-1] == b"more"
        assert store.max_offset("t", 0) == 201
    third = backup_store(directory, bucket, keep=1)
    assert third.gone == [first.name, second.name]
    target = module.open_target(bucket)
    kept = {extent.object for each in list_backups(bucket) for extent in each.extents()}
    assert target.objects().keys() == kept
    lost, damaged = sorted(kept)[:2] if len(kept) > 1 else (min(kept), None)
    target.remove_object(lost)
    if damaged is not None:
        target.write_object(damaged, b"x")
    assert {each.object.rpartition("/")[2] for each in verify_backups(bucket).bad} == {lost, damaged} - {None}
    with pytest.raises(BackupFailed, match="bucket"):
        backup_store(directory, bucket.replace("/broker-a", "-none/broker-a"))
