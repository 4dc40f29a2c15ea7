"""The outbox: an SQLite file of batches that no broker took, in the order in which their tries ran out.

A batch is kept as the records that were to be sent, so that it is the same messages, with the same unique keys,
whenever it goes out. What is kept survives the death of its process. Any process may read and add; one at a time sends.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue
from raymq.client.forking import let_go_before_fork
from raymq.storage.clock import boot_id, boottime
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records.record import Record, decode

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kept_at REAL NOT NULL,
    topic TEXT NOT NULL,
    broker TEXT, queue_id INTEGER,      -- where a queue was chosen
    sharding_key TEXT,
    delayed INTEGER NOT NULL,
    records BLOB NOT NULL,
    sizes BLOB NOT NULL,                -- int32, little-endian
    state TEXT NOT NULL DEFAULT 'waiting',
    tries INTEGER NOT NULL DEFAULT 0,   -- from the outbox
    error TEXT NOT NULL
);
-- Who sends, until when: seconds since the machine started, which nobody sets, and which of its starts that was.
CREATE TABLE IF NOT EXISTS lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), owner TEXT NOT NULL, boot TEXT NOT NULL, until REAL NOT NULL
);
"""
#: What SQLite files of ours say of themselves: "RyOb".
_APPLICATION: Final = 0x52794F62
#: The least that an outbox of any version has.
_COLUMNS: Final = {"id", "kept_at", "topic", "records", "sizes", "state", "tries"}
#: How long a call waits for a file that another process has locked.
_BUSY_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class KeptBatch:
    """One batch of the outbox. `state` is "refused" once a broker refused it for good: then it waits for a decision."""

    id: int
    kept_at: float
    topic: str
    queue: MessageQueue | None
    sharding_key: str | None
    delayed: bool
    records: bytes
    sizes: npt.NDArray[np.int32]
    state: Literal["waiting", "refused"]
    tries: int
    error: str

    def messages(self) -> list[Record]:
        """Its messages, as they would be stored; StoreCorrupt if the row is damaged."""
        starts = np.cumsum(self.sizes) - self.sizes
        if not len(starts) or int(self.sizes.min()) <= 0 or int(self.sizes.sum(dtype=np.int64)) != len(self.records):
            raise StoreCorrupt("outbox", 0, f"batch {self.id} is damaged")
        try:
            return [decode(self.records, start) for start in starts.tolist()]
        except (ValueError, IndexError, struct.error) as error:
            raise StoreCorrupt("outbox", 0, f"batch {self.id} is damaged: {error}") from error


class ToKeep(NamedTuple):
    """A batch that is to be kept: its records, the size of each, and where it goes."""

    records: bytearray
    sizes: npt.NDArray[np.int32]
    queue: MessageQueue | None = None
    sharding_key: str | None = None
    delayed: bool = False


class UnsentSend(NamedTuple):
    """What one send keeps: its batches, and why they could not be sent."""

    topic: str
    batches: Sequence[ToKeep]
    error: str


class OutboxFile:
    """Thread-safe. What it holds has wall times, in seconds.

    It is closed while the process forks, and opened anew by who uses it next. SQLite keeps books of its own of the
    locks that a process has, and a child believes its parent's: it would take a file for locked by itself that nobody
    has locked, write into a log that the parent deletes, or wait for a thread that it does not have.

    Each method raises `sqlite3.Error` if the file is locked for long, or the disk is full; then nothing has changed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        read_only: bool = False,
        elapsed: Callable[[], float] = boottime,
        boot: str | None = None,
    ) -> None:
        """Open or make the file; InvalidInput if it cannot be, or is another program's, which is left as it is.

        Args:
            read_only: change nothing; the file has to be there.
            elapsed: seconds since the machine started.
            boot: names that start of the machine; None: as the system does.
        """
        self._elapsed = elapsed
        self._boot = boot_id() if boot is None else boot
        #: Who has it uses the file. Whoever forks has it meanwhile, a signal handler perhaps.
        self._lock = threading.RLock()
        #: Where one waits for that: the others behind it, so that a fork waits for one use and not for all.
        self._door = threading.RLock()
        self._owner = uuid.uuid4().hex
        self._uri = f"{Path(path).absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        #: None before it is used for the first time, and behind a fork.
        self._opened: sqlite3.Connection | None = None
        self._closed = False
        let_go_before_fork(self, OutboxFile._let_go, OutboxFile._go_on)
        with self._using():
            try:
                self._check_ours(path, read_only)
                if not read_only:
                    self._db.execute("PRAGMA journal_mode=WAL")
                    self._db.executescript(_SCHEMA)
                    self._db.execute(f"PRAGMA application_id={_APPLICATION}")
            except sqlite3.Error as error:
                self._disconnect()
                raise InvalidInput("outbox", f"a file that SQLite can open ({error})", str(path)) from error
            except BaseException:
                self._disconnect()
                raise

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        with self._door:
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    @property
    def _db(self) -> sqlite3.Connection:
        """With the lock held."""
        if self._closed:
            raise sqlite3.ProgrammingError("the outbox is closed")
        if self._opened is None:
            self._opened = sqlite3.connect(
                self._uri, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
            )
        return self._opened

    def _disconnect(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _let_go(self) -> None:
        self._door.acquire()
        self._lock.acquire()
        with contextlib.suppress(sqlite3.Error):
            self._disconnect()

    def _go_on(self) -> None:
        self._lock.release()
        self._door.release()

    def _check_ours(self, path: str | Path, read_only: bool) -> None:
        """InvalidInput if the file holds what another program has put there. Older ones of ours do not say so."""
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        columns = {row[1] for row in self._db.execute("PRAGMA table_info(batches)")}
        is_new = not application and not tables and not read_only
        if not is_new and (application not in (0, _APPLICATION) or not columns >= _COLUMNS):
            raise InvalidInput("outbox", "an outbox of RayMQ, or a file that is not there yet", str(path))

    def keep(self, *sends: UnsentSend) -> list[int]:
        """Add batches behind all others, all of them or none; their numbers. All of them cost one sync of the disk."""
        numbers: list[int] = []
        with self._using():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for topic, each, error in [(topic, each, error) for topic, those, error in sends for each in those]:
                    broker, queue_id = (None, None) if each.queue is None else (each.queue.broker, each.queue.queue_id)
                    where = topic, broker, queue_id, each.sharding_key, each.delayed
                    cursor = self._db.execute(
                        "INSERT INTO batches"
                        " (kept_at, topic, broker, queue_id, sharding_key, delayed, records, sizes, error)"
                        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (time.time(), *where, bytes(each.records), _pack(each.sizes), error),
                    )
                    assert cursor.lastrowid is not None
                    numbers.append(cursor.lastrowid)
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # where the disk is full it is done already
                    self._db.execute("ROLLBACK")
                raise
        return numbers

    def batches(self) -> list[KeptBatch]:
        """All of them, oldest first."""
        return self._select("ORDER BY id")

    def next(self, resting: Iterable[str] = ()) -> KeptBatch | None:
        """The batch that goes out next; none of the topics that rest."""
        due = "WHERE state = 'waiting' AND topic NOT IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT 1"
        return next(iter(self._select(due, json.dumps(list(resting)))), None)

    def remove(self, number: int) -> bool:
        """A batch was sent, or shall not be; False if it was not there."""
        return self._change("DELETE FROM batches WHERE id = ?", number)

    def failed(self, number: int, error: str, *, refused: bool) -> None:
        """A batch was tried in vain; `refused` = another try would be, too."""
        state = "refused" if refused else "waiting"
        self._change("UPDATE batches SET tries = tries + 1, error = ?, state = ? WHERE id = ?", error, state, number)

    def retry(self, number: int) -> bool:
        """Let a batch wait again, in its old place; False if it was not there."""
        return self._change("UPDATE batches SET state = 'waiting' WHERE id = ?", number)

    def claim(self, seconds: float) -> bool:
        """Be the one that sends for so long; False while somebody else is. To be called again before that.

        Whoever sent before the machine was started anew is gone, whatever it had claimed.
        """
        now = self._elapsed()
        return self._change(
            "INSERT INTO lease VALUES (1, ?, ?, ?) ON CONFLICT (one) DO UPDATE SET owner = excluded.owner,"
            " boot = excluded.boot, until = excluded.until"
            " WHERE owner = excluded.owner OR boot != excluded.boot OR until < ?",
            self._owner,
            self._boot,
            now + seconds,
            now,
        )

    def close(self) -> None:
        """Let others send at once, and close the file. May be called again."""
        with self._using():
            with contextlib.suppress(sqlite3.Error):  # closed before, or locked: then the claim ends by itself
                self._db.execute("DELETE FROM lease WHERE owner = ?", (self._owner,))
            self._disconnect()
            self._closed = True

    def _change(self, statement: str, *values: object) -> bool:
        with self._using():
            return self._db.execute(statement, values).rowcount > 0

    def _select(self, rest: str, *values: object) -> list[KeptBatch]:
        columns = "id, kept_at, topic, broker, queue_id, sharding_key, delayed, records, sizes, state, tries, error"
        with self._using():
            rows = self._db.execute(f"SELECT {columns} FROM batches {rest}", values).fetchall()  # noqa: S608 - constants
        return [
            KeptBatch(
                number,
                kept_at,
                topic,
                None if broker is None else MessageQueue(topic, broker, queue_id),
                sharding_key,
                bool(delayed),
                records,
                _unpack(sizes),
                state,
                tries,
                error,
            )
            for (
                number,
                kept_at,
                topic,
                broker,
                queue_id,
                sharding_key,
                delayed,
                records,
                sizes,
                state,
                tries,
                error,
            ) in rows
        ]


def _pack(sizes: npt.NDArray[np.int32]) -> bytes:
    return sizes.astype("<i4").tobytes()


def _unpack(sizes: object) -> npt.NDArray[np.int32]:
    """None where they are damaged, which `KeptBatch.messages` tells."""
    if not isinstance(sizes, bytes) or len(sizes) % 4:
        return np.zeros(0, np.int32)
    return np.frombuffer(sizes, "<i4").astype(np.int32)
