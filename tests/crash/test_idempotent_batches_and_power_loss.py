"""Lose power while an idempotent producer's batch is being synced, and send it again after the restart.

A part of the batch may be left, other messages may follow it, and the broker's journal of producers may be ahead of
the log or behind it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.errors import SequenceGap
from raymq.storage import checkpointer
from raymq.storage.files.file_calls import replaced
from tests.crash.power_loss import Disk
from tests.crash.sequencing_broker import CONFIG, SequencingBroker, drop_saved_states, numbered_bodies

pytestmark = pytest.mark.crash

#: Small batches use another code path than large ones; a batch beyond the file size spans several files.
FEW, MANY, OF_SEVERAL_FILES = (10, 200), (40, 200), (24, 2_500)
KINDS = pytest.mark.parametrize("kind", [FEW, MANY, OF_SEVERAL_FILES], ids=["few", "many", "of several files"])
#: A constant time, so that store times do not distinguish lives.
NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each open of the store look like one after a reboot."""
    monkeypatch.setattr(checkpointer, "boot_id", lambda: "an earlier boot")


class Machine:
    """Brokers one after another, each in the directory that a power loss left of the one before."""

    def __init__(self, root: Path, seed: int, flush: str) -> None:
        self.random = random.Random(seed)
        self.config = replace(CONFIG, commitlog_file_bytes=1 << 14, flush=flush)
        self._root = root
        self._lives = 0
        self.directory = root / "0"
        self.directory.mkdir()

    def open(self) -> SequencingBroker:
        return SequencingBroker(self.directory, self.config, lambda: NOW_MS)

    @contextmanager
    def life(self, luck: float | None = None) -> Iterator[SequencingBroker]:
        """Run a broker that ends with a power loss; `luck` as in `Disk`, None: random."""
        disk = Disk(self.directory)
        disk.remember_all()
        with replaced(disk):
            broker = self.open()
            yield broker
            self._lives += 1
            self.directory = self._root / str(self._lives)
            chosen = self.random.choice((0.3, 0.7, 0.9, 1.0)) if luck is None else luck
            disk.after_power_loss(self.directory, self.random, chosen)
            broker.die()
        disk.close()


def send_again(broker: SequencingBroker, sent: list[bytes], first: int = 1) -> list[int]:
    """Send the batch again; check that it is stored once at the returned offsets, and return these."""
    placed = broker.send(sent, first)
    broker.store.flush()
    assert broker.named(placed) == sent
    there = broker.bodies()
    assert [there.count(body) for body in sent] == [1] * len(sent)
    offsets: list[int] = placed.queue_offsets.tolist()  # type: ignore[union-attr]
    return offsets


def check_without_journal(machine: Machine, sent: list[bytes], offsets: list[int]) -> None:
    """Check that a start without the producers' journal returns the same offsets."""
    for copy, with_journal in ((machine.directory.with_name("copy"), True), (machine.directory, False)):
        if with_journal:
            shutil.copytree(machine.directory, copy)
        else:
            drop_saved_states(machine.directory)
        broker = SequencingBroker(copy, machine.config, lambda: NOW_MS)
        assert send_again(broker, sent) == offsets
        send_again(broker, [b"next"], 1 + len(sent))
        broker.die()


@pytest.mark.sweep(every=14)
@KINDS
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("saved", [False, True], ids=["", "journal written"])
@pytest.mark.parametrize("others", [False, True], ids=["", "others came first"])
def test_repeated_batch_is_completed_after_power_loss(
    tmp_path: Path, kind: tuple[int, int], flush: str, saved: bool, others: bool
) -> None:
    count, body_bytes = kind
    sent = numbered_bodies(1, count, body_bytes)
    cut = 0
    for seed in range(10):
        root = tmp_path / str(seed)
        root.mkdir()
        machine = Machine(root, seed, flush)
        with machine.life(0.9) as broker:
            broker.send([b"before"], 0)
            broker.store._save_checkpoint()
            broker.send(sent, 1)
            if saved:
                broker.save()
        broker = machine.open()
        there = broker.bodies()
        assert there == [b"before", *sent[: len(there) - 1]]
        cut += 1 < len(there) <= count
        if others:
            broker.send_others(*[b"other"] * 2 * count)
        offsets = send_again(broker, sent)
        expected = [b"before", *sent[: len(there) - 1], *[b"other"] * 2 * count * others, *sent[len(there) - 1 :]]
        assert broker.bodies() == expected
        assert send_again(broker, sent) == offsets
        broker.die()
        check_without_journal(machine, sent, offsets)
    assert cut >= 2, "nothing was tested"


@pytest.mark.sweep(every=16)
@KINDS
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(8))
def test_repeated_batch_is_completed_after_many_power_losses(
    tmp_path: Path, kind: tuple[int, int], flush: str, seed: int
) -> None:
    count, body_bytes = kind
    sent = numbered_bodies(1, count, body_bytes)
    machine = Machine(tmp_path, seed, flush)
    with machine.life() as broker:
        broker.send([b"before"], 0)
        broker.store._save_checkpoint()
    for _ in range(6):
        with machine.life() as broker:
            if machine.random.random() < 0.5:
                broker.send_others(*[b"other"] * machine.random.randint(1, 2 * count))
            if machine.random.random() < 0.5:
                broker.store.flush()
            placed = broker.send(sent, 1)
            if machine.random.random() < 0.5:
                broker.save()
            assert len(placed.queue_offsets) == count
            if machine.random.random() < 0.1:
                send_again(broker, sent)
    broker = machine.open()
    offsets = send_again(broker, sent)
    broker.die()
    check_without_journal(machine, sent, offsets)


def test_other_batch_after_cut_batch_raises_sequence_gap(tmp_path: Path) -> None:
    """With async flush the batch was acknowledged and the producer went on. It must begin a new epoch."""
    sent = numbered_bodies(1, 10, 200)
    machine = Machine(tmp_path, 4, "async")
    with machine.life(0.9) as broker:
        broker.send([b"before"], 0)
        broker.store._save_checkpoint()
        broker.send(sent, 1)
    broker = machine.open()
    here = len(broker.bodies()) - 1
    assert 0 < here < 10
    for first, bodies in ((11, [b"next"]), (1 + here, sent[here:]), (1 + here, [b"next"]), (1, sent[:here])):
        with pytest.raises(SequenceGap):
            broker.send(bodies, first)
    assert broker.bodies() == [b"before", *sent[:here]]
    assert broker.named(broker.send([b"next"], 0, epoch=1)) == [b"next"]
    with pytest.raises(SequenceGap):
        broker.send(sent, 1)
    broker.close()
