"""SIGKILL a replica at each step of its writes: its log is always a prefix of its master's."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage import checkpointer, store_parts
from raymq.storage.failpoints import NAMES
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from tests import fork_server
from tests.crash.following_writer import CONFIG
from tests.crash.power_loss import Disk
from tests.faulty_calls import UnsyncedCalls
from tests.store_records import append, make_record, write_entries
from tests.store_replication import DivergedBrokers, diverge_brokers, fill, log_content, read_bodies, ship

pytestmark = pytest.mark.crash

PROGRAM = Path(__file__).with_name("following_writer.py")
FOLLOW_POINTS = tuple(name for name in NAMES if name.startswith("follow."))


TRUNCATION_POINTS = (
    *(name for name in NAMES if name.startswith("truncation.")),
    *("recovery.before_cut", "recovery.between_cuts", "checkpoint.before_queues", "checkpoint.before_state"),
    *("checkpoint.after_state", "replace.before_rename", "replace.after_rename", "open.before_checkpoint"),
    *("open.before_clamp", "state.before_write", "follow.before_size"),
)


def run_replica(directory: Path, master: Path, failpoint: str, place: int | None = None) -> tuple[bool, int]:
    """Return whether the program was killed at the failpoint, and the log end that it might have acknowledged."""
    arguments = [str(PROGRAM), str(directory), str(master), failpoint, *([] if place is None else [str(place)])]
    done = fork_server.run(arguments, stdout=subprocess.PIPE, timeout=120)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0, int((done.stdout.split() or [0])[-1])


@pytest.mark.parametrize("failpoint", [*FOLLOW_POINTS, "dispatch.before_queue", "dispatch.before_index"])
def test_killed_replica_has_prefix_of_master_log(tmp_path: Path, failpoint: str) -> None:
    with Store.open(tmp_path / "master", CONFIG) as master:
        fill(master, 30)
        ends = {0, *range(0, 1 << 17, 4096)} | {record.physical_offset + record.size for record in master.walk(0)}
        content = read_bodies(master)
    log = b"".join(log_content(tmp_path / "master").values())
    acknowledged = 0
    for times in (1, 4, 11):
        killed, reported = run_replica(tmp_path / "replica", tmp_path / "master", f"{failpoint}:{times}")
        assert killed
        acknowledged = max(acknowledged, reported)
        with Store.open(tmp_path / "replica", CONFIG) as replica:
            end = replica.max_physical_offset
            assert end >= acknowledged, "what was told is there, though the queues had not come to know it"
            assert sum(map(len, read_bodies(replica).values())) == len(list(replica.walk(0))), "and in its queue"
            assert replica.recovery.corruption == []
            assert end in ends
            found = b"".join(log_content(tmp_path / "replica").values())
            assert found[:end] == log[:end]
            assert not any(found[end:])
    assert not run_replica(tmp_path / "replica", tmp_path / "master", "")[0]
    with Store.open(tmp_path / "replica", CONFIG) as replica:
        assert read_bodies(replica) == content
    assert log_content(tmp_path / "replica") == log_content(tmp_path / "master")


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> DivergedBrokers:
    return diverge_brokers(tmp_path_factory.mktemp("parted"), CONFIG)


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("failpoint", TRUNCATION_POINTS)
def test_killed_truncation_is_undone_or_completed_by_next_start(
    tmp_path: Path, diverged: DivergedBrokers, failpoint: str
) -> None:
    """Trap 1: nothing that was truncated ever comes back."""
    shutil.copytree(diverged.former, tmp_path / "former")
    killed = 0
    for times in (1, 2, 1):
        killed += run_replica(tmp_path / "former", diverged.master, f"{failpoint}:{times}", diverged.place)[0]
        shutil.copytree(tmp_path / "former", tmp_path / "copy")
        with Store.open(tmp_path / "copy", CONFIG) as former:
            is_cut = diverged.check(former)
            assert is_cut or former.max_physical_offset == diverged.former_end
        if is_cut:
            with Store.open(tmp_path / "copy", CONFIG) as former:
                assert diverged.check(former)
        shutil.rmtree(tmp_path / "copy")
    assert killed > 0
    assert not run_replica(tmp_path / "former", diverged.master, "", diverged.place)[0]
    with Store.open(tmp_path / "former", CONFIG) as former:
        assert diverged.check(former)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_truncation_survives_power_loss_at_each_sync(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check before each sync: the log is the old or the truncated one, and no tail comes back."""
    boots = [0]
    monkeypatch.setattr(checkpointer, "boot_id", lambda: f"boot {boots[0]}")
    monkeypatch.setattr(store_parts, "boot_id", lambda: f"boot {boots[0]}")
    two = diverge_brokers(tmp_path, CONFIG, common=8, own=8)
    random_ = random.Random(seed)
    disk = Disk(two.former)
    disk.remember_all()
    looked = [0, 0]
    done = False

    def look() -> None:
        place = tmp_path / "look"
        disk.after_power_loss(place, random_, random_.choice((0.0, 0.3, 0.7, 1.0)))
        boots[0] += 1
        with replaced(UnsyncedCalls()):
            with Store.open(place, CONFIG) as former:
                is_cut = two.check(former)
                assert is_cut or not done
                assert is_cut or former.max_physical_offset == two.former_end
            if is_cut:
                with Store.open(place, CONFIG) as former:
                    assert two.check(former)
        boots[0] -= 1
        looked[is_cut] += 1
        shutil.rmtree(place)

    with replaced(disk):
        store = Store.open(two.former, CONFIG)
        disk.before_sync = look
        store.order_truncation(two.place, last_epoch=1)
        disk.before_sync = None
        done = True
        look()
        disk.before_sync = look
        store.close()
        store = Store.open(two.former, CONFIG)
        look()
        store.follow()
        with replaced(UnsyncedCalls()), Store.open(two.master, CONFIG, read_only=True) as master:
            ship(master, store, seed, most=900)
        look()
        write_entries(store)
        store.flush()
        look()
        store._save_checkpoint()
        look()
        disk.before_sync = None
        store.close()
    disk.close()
    assert looked[False] > 0
    assert looked[True] > 20


@pytest.mark.parametrize("first", [0, 3], ids=["all", "part"])
def test_truncated_data_stays_removed_without_new_writes(
    tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a queue without new messages, and for an empty log: no later sync rewrites the truncated part."""
    boots = [0]
    for module in (checkpointer, store_parts):
        monkeypatch.setattr(module, "boot_id", lambda: f"boot {boots[0]}")
    (tmp_path / "s").mkdir()
    disk = Disk(tmp_path / "s")
    config = replace(CONFIG, commitlog_file_bytes=1 << 16)
    with replaced(disk):
        with Store.open(tmp_path / "s", config) as store:
            append(store, *(make_record(b"old %d" % each, queue_id=1) for each in range(first + 1)))
            place = list(store.walk(0))[first].physical_offset
            append(store, *(make_record(b"tail %d" % each, queue_id=1) for each in range(9)))
            write_entries(store)
        disk.remember_all()
        with Store.open(tmp_path / "s", config) as store:
            store.order_truncation(place)
        Store.open(tmp_path / "s", config)._abandon()
        disk.after_power_loss(tmp_path / "at once", random.Random(0), 0.0)
        with Store.open(tmp_path / "s", config) as store:
            append(store, *(make_record(bytes(300)) for each in range(20)))
            store._save_checkpoint()
            disk.after_power_loss(tmp_path / "later", random.Random(0), 0.0)
    disk.close()
    boots[0] += 1
    for name, end in (("at once", place), ("later", place + 20 * len(make_record(bytes(300))))):
        with Store.open(tmp_path / name, config) as store:
            assert store.max_physical_offset == end
            assert read_bodies(store).get(("orders", 1), []) == [b"old %d" % each for each in range(first)]
