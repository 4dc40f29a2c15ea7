"""SIGKILL a process at every step of everything that a store writes."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from raymq.storage.failpoints import NAMES, VARIABLE, arm
from raymq.storage.files import json_file
from raymq.storage.store import Store
from tests import fork_server
from tests.crash.failpoint_writer import CONFIG, main
from tests.crash.killed_call import run_killed

pytestmark = pytest.mark.crash

PROGRAM = Path(__file__).with_name("failpoint_writer.py")
ROOT = Path(__file__).parents[2]
#: Failpoints of an open that truncates: only the open after a kill reaches them.
RECOVERY_POINTS = ("recovery.before_cut", "recovery.between_cuts")
#: Failpoints of the compiled code.
COMPILED_POINTS = (
    "append.before_copy",
    "append.before_size",
    "dispatch.before_queue",
    "dispatch.before_index",
    "index.before_header",
)
#: test_retention_kill.py kills at these.
RETENTION_POINTS = tuple(name for name in NAMES if name.startswith("retention."))
#: test_full_disk_cleanup.py kills at it.
OTHER_POINTS = ("cleanup.before_remove",)
#: Failpoints of JSON files with a spare copy: a broker has one beside its store, a name server three.
JSON_FILE_POINTS = ("settings.before_backup", "settings.before_replace")
#: unit/storage/journal/test_format_1.py and test_format_2.py kill at these: only former formats lead to them.
FORMER_FORMAT_POINTS = ("format.before_snapshot", "format.before_removal")
#: test_commit_kill.py kills at these.
STAGED_WRITE_POINTS = tuple(name for name in NAMES if name.startswith(("write.", "staged.")))
#: unit/actors/test_staged_folders.py kills at these: only a directory of format 2 leads to them.
STAGED_FOLDER_POINTS = tuple(name for name in NAMES if name.startswith("staged_folders."))
#: test_keepers.py kills at these.
KEEPER_POINTS = tuple(name for name in NAMES if name.startswith("keeper."))
#: test_replica_kill.py kills at these.
REPLICA_POINTS = tuple(name for name in NAMES if name.startswith(("follow.", "truncation.")))
#: test_backup_kill.py kills at these.
BACKUP_POINTS = tuple(name for name in NAMES if name.startswith(("backup.", "restore.")))
#: test_killed_replicas.py kills at these; test_copy_kill.py at the ones of copies.
ROLE_POINTS = tuple(name for name in NAMES if name.startswith(("claim.", "copy.", "wipe.", "leader.")))
POINTS_OF_OTHER_FILES = (
    RECOVERY_POINTS
    + RETENTION_POINTS
    + OTHER_POINTS
    + JSON_FILE_POINTS
    + FORMER_FORMAT_POINTS
    + STAGED_WRITE_POINTS
    + STAGED_FOLDER_POINTS
    + KEEPER_POINTS
    + REPLICA_POINTS
    + BACKUP_POINTS
    + ROLE_POINTS
)
STORE_POINTS = tuple(name for name in NAMES if name not in POINTS_OF_OTHER_FILES)


@dataclass
class Acknowledged:
    """What the program acknowledged; `next_number` is the number of the first missing record."""

    places: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    committed: int | None = None
    delayed: int | None = None
    planned: int | None = None
    topics: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    next_number: int = 0
    expiring: int = 0

    def hear(self, line: str) -> None:
        word, *rest = line.split()
        if word == "stored":
            number, *place = map(int, rest)
            self.places[number] = (place[0], place[1], place[2])
        elif word == "committed":
            self.committed = int(rest[0])
        elif word == "delayed":
            self.delayed = int(rest[0])
        elif word == "planned":
            self.planned = int(rest[0])
        elif word == "expiring":
            self.expiring = int(rest[0])
        elif word == "topic":
            self.topics.add(rest[0])
        elif word == "gone":
            self.topics.discard(rest[0])
            self.gone.add(rest[0])


def run_writer(directory: Path, failpoint: str, promised: Acknowledged, batch_code: str = "numpy") -> bool:
    """Run the program to its end or its death; return whether it was killed at the failpoint."""
    arguments = [str(PROGRAM), str(directory), str(promised.next_number), "2", batch_code]
    environment = {**os.environ, VARIABLE: failpoint}
    done = fork_server.run(arguments, env=environment, stdout=subprocess.PIPE, text=True, timeout=120)
    for line in done.stdout.splitlines():
        promised.hear(line)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


def check_store(directory: Path, promised: Acknowledged) -> None:
    """Check that acknowledged writes are stored; others are stored whole or not at all."""
    with Store.open(directory, CONFIG) as store:
        assert store.recovery.corruption == []
        stored = [record for record in store.walk(store.min_physical_offset) if record.topic == "t"]
        numbers = [int(record.body) for record in stored]
        first = next(iter(numbers), promised.next_number)
        end = first + len(numbers)
        assert numbers == list(range(first, end))
        assert end > max(promised.places, default=-1)
        expected_first = min(
            (n for n, place in promised.places.items() if place[2] >= promised.expiring), default=first
        )
        assert first <= expected_first
        per_queue: dict[int, list[int]] = {0: [], 1: []}
        for record in stored:
            number = int(record.body)
            place = (record.queue_id, record.queue_offset, record.physical_offset)
            assert promised.places.get(number, place) == place
            assert record.queue_offset == number // 2
            per_queue[record.queue_id].append(number)
        for queue_id, expected in per_queue.items():
            read: list[int] = []
            while len(read) < len(expected):
                offset = store.min_offset("t", queue_id) + len(read)
                with store.read("t", queue_id, offset, 100) as lease:
                    read += [int(record.body) for record in lease.messages()]
            assert read == expected
            assert not expected or store.max_offset("t", queue_id) == expected[-1] // 2 + 1
        for number in numbers:
            for key in (f"U{number}", f"k{number}"):
                assert [int(record.body) for record in store.query("t", key, 0, 1 << 60, 5)] == [number]
        committed = store.consumer_offsets.get("g", "t", 0)
        delayed = store.delay_offsets.get(1)
        planned = max((batch for batch, _ in store.tables.stream_plans.kept("s", "q")), default=None)
        assert (committed or 0) >= (promised.committed or 0)
        assert (delayed or 0) >= (promised.delayed or 0)
        assert (planned or 0) >= (promised.planned or 0)
        assert max(committed or 0, delayed or 0) <= end
        known = set(store.topic_configs.all())
        # The program may die during one deletion.
        assert len(promised.topics - known) <= 1
        assert not promised.gone & known
        assert not promised.gone & set(store.topics())
        promised.next_number = end
        promised.committed, promised.delayed = committed, delayed
        promised.topics &= known


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("failpoint", STORE_POINTS)
def test_acknowledged_writes_survive_kill_at_each_failpoint(tmp_path: Path, failpoint: str) -> None:
    promised = Acknowledged()
    assert run_writer(tmp_path, f"{failpoint}:1", promised) or run_writer(tmp_path, f"{failpoint}:1", promised)
    check_store(tmp_path, promised)
    main(tmp_path, promised.next_number, 1, promised.hear)
    check_store(tmp_path, promised)


@pytest.mark.parametrize("failpoint", COMPILED_POINTS)
def test_acknowledged_writes_survive_kill_in_compiled_code(tmp_path: Path, failpoint: str) -> None:
    pytest.importorskip("raymq_native")
    promised = Acknowledged()
    assert run_writer(tmp_path, f"{failpoint}:1", promised, "compiled") or run_writer(
        tmp_path, f"{failpoint}:1", promised, "compiled"
    )
    check_store(tmp_path, promised)
    assert not run_writer(tmp_path, "", promised, "compiled")
    check_store(tmp_path, promised)


@pytest.mark.parametrize("failpoint", RECOVERY_POINTS)
def test_acknowledged_writes_survive_kill_in_recovery(tmp_path: Path, failpoint: str) -> None:
    promised = Acknowledged()
    assert run_writer(tmp_path, "append.before_size:2", promised)
    assert run_writer(tmp_path, failpoint, promised)
    check_store(tmp_path, promised)


@pytest.mark.parametrize("failpoint", JSON_FILE_POINTS)
def test_json_file_survives_kill_while_it_is_saved(tmp_path: Path, failpoint: str) -> None:
    path = tmp_path / "broker.json"
    for number in range(2):
        json_file.save(path, {"number": number}, dict)
    assert run_killed(failpoint, lambda: json_file.save(path, {"number": 2}, dict)) == -signal.SIGKILL
    assert json_file.load(path) == {"number": 1}
    path.unlink()
    assert json_file.load(path) == {"number": 1 if failpoint == "settings.before_replace" else 0}


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_writes_survive_repeated_random_kills(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    promised = Acknowledged()
    killed = 0
    for _ in range(50):
        killed += run_writer(
            tmp_path, f"{random_.choice(STORE_POINTS + RECOVERY_POINTS)}:{random_.choice((1, 2, 5, 20, 60))}", promised
        )
        check_store(tmp_path, promised)
    assert killed > 15  # the others end before they reach their failpoint


def test_failpoint_list_matches_source_code() -> None:
    folders = (ROOT / "storage", ROOT / "actors")
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    found = [name for text in texts for name in re.findall(r'\bfailpoint\("([^"]+)"\)', text)]
    assert sorted(found) == sorted(NAMES)


def test_arming_unknown_failpoint_raises() -> None:
    with pytest.raises(ValueError, match="is not a failpoint"):
        arm("append.nowhere")
