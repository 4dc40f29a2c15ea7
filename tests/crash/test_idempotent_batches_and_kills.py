"""Kill a broker while it stores the batch of an idempotent producer, and send the batch again after the restart."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.failpoints import VARIABLE
from tests import fork_server
from tests.crash.sequencing_broker import CONFIG, SequencingBroker, drop_saved_states, numbered_bodies

pytestmark = pytest.mark.crash

PROGRAM = Path(__file__).with_name("sequencing_broker.py")
FILE_BYTES = 1 << 14
#: Small batches use another code path than large ones; a batch beyond the file size spans several files.
FEW, MANY, OF_SEVERAL_FILES = (10, 20), (40, 20), (40, 1_000)
FEW_LARGE = (8, 5_000)


def run_until_killed(directory: Path, failpoint: str, count: int, body_bytes: int, batch_code: str) -> None:
    arguments = [str(PROGRAM), str(directory), str(FILE_BYTES), "1", str(count), str(body_bytes), batch_code]
    done = fork_server.run(arguments, env={**os.environ, VARIABLE: failpoint}, timeout=120)
    assert done.returncode == -signal.SIGKILL


def check_repeated_send(directory: Path, count: int, body_bytes: int, *, others: bool) -> None:
    """Check that the batch is stored whole or not at all, and that a repeated send stores it once."""
    sent = numbered_bodies(1, count, body_bytes)
    broker = SequencingBroker(directory, replace(CONFIG, commitlog_file_bytes=FILE_BYTES))
    assert broker.bodies() in ([b"before"], [b"before", *sent])
    if others:
        broker.send_others(*[b"other"] * 2 * count)
    placed = broker.send(sent, 1)
    assert broker.named(placed) == sent
    there = broker.bodies()
    assert [there.count(body) for body in sent] == [1] * count
    broker.die()
    drop_saved_states(directory)
    broker = SequencingBroker(directory, replace(CONFIG, commitlog_file_bytes=FILE_BYTES))
    again = broker.send(sent, 1)
    assert again.queue_offsets.tolist() == placed.queue_offsets.tolist()  # type: ignore[union-attr]
    assert broker.named(broker.send([b"next"], 1 + count)) == [b"next"]
    assert broker.bodies() == [*there, b"next"]
    broker.close()


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("others", [False, True], ids=["at once", "others came first"])
@pytest.mark.parametrize(
    ("failpoint", "kind"),
    [
        *[(f"append.few_{step}", FEW) for step in ("before_copy", "before_size")],
        *[(f"dispatch.one_before_index:{number}", FEW) for number in (1, 4, 10)],
        *[("append.before_copy", kind) for kind in (MANY, OF_SEVERAL_FILES)],
        *[("append.before_size", kind) for kind in (MANY, OF_SEVERAL_FILES, FEW_LARGE)],
        *[(f"append.before_copy:{number}", OF_SEVERAL_FILES) for number in (2, 3)],
        *[(f"append.before_copy:{number}", FEW_LARGE) for number in (2, 3)],
        *[(f"roll.{step}", OF_SEVERAL_FILES) for step in ("before_file", "before_blank", "after_blank")],
        *[(f"roll.{step}:2", OF_SEVERAL_FILES) for step in ("before_file", "before_blank", "after_blank")],
        *[(f"dispatch.before_{step}", kind) for kind in (MANY, OF_SEVERAL_FILES) for step in ("queue", "index")],
    ],
)
def test_repeated_batch_is_stored_once_after_kill(
    tmp_path: Path, failpoint: str, kind: tuple[int, int], others: bool
) -> None:
    run_until_killed(tmp_path, failpoint, *kind, "numpy")
    check_repeated_send(tmp_path, *kind, others=others)


@pytest.mark.parametrize("kind", [MANY, OF_SEVERAL_FILES])
@pytest.mark.parametrize("failpoint", ["append.before_copy", "append.before_size", "dispatch.before_index"])
def test_repeated_batch_is_stored_once_by_compiled_code(tmp_path: Path, failpoint: str, kind: tuple[int, int]) -> None:
    pytest.importorskip("raymq_native")
    run_until_killed(tmp_path, failpoint, *kind, "compiled")
    check_repeated_send(tmp_path, *kind, others=True)


def test_partial_batch_over_several_files_is_removed(tmp_path: Path) -> None:
    run_until_killed(tmp_path, "append.before_size", *OF_SEVERAL_FILES, "numpy")
    assert len(list((tmp_path / "commitlog").iterdir())) > 2
    broker = SequencingBroker(tmp_path, replace(CONFIG, commitlog_file_bytes=FILE_BYTES))
    broker.send_others(b"other")
    broker.die()
    copy = tmp_path.with_name("copy")
    shutil.copytree(tmp_path, copy)
    broker = SequencingBroker(copy, replace(CONFIG, commitlog_file_bytes=FILE_BYTES))
    assert broker.store.recovery.corruption == []
    assert broker.bodies() == [b"before", b"other"]
    broker.close()
