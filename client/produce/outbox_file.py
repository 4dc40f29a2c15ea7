"""Store batches that no broker accepted in an SQLite file, in the order of failure.

A batch is stored as the records that were to be sent, so its messages and their unique keys stay the same whenever it
is sent. The batches survive a crash of the process. Any process may read and add batches. One process at a time sends
them.
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
from raymq.client.fork_hooks import register_fork_hooks
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
-- The process that sends, until when (seconds since the machine started: this clock cannot be set), and the boot's id.
CREATE TABLE IF NOT EXISTS lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), owner TEXT NOT NULL, boot TEXT NOT NULL, until REAL NOT NULL
);
"""
#: The application id in the SQLite header of an outbox: "RyOb".
_APPLICATION: Final = 0x52794F62
#: The columns that every version of the outbox has.
_COLUMNS: Final = {"id", "kept_at", "topic", "records", "sizes", "state", "tries"}
#: How long a call waits for a file that another process has locked, in seconds.
_BUSY_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class OutboxBatch:
    """One batch of the outbox.

    `state` is "refused" once a broker refused it permanently. The batch then waits for a user's decision.
    """

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
        """Decode the batch's messages. Raise StoreCorrupt if the row is damaged."""
        starts = np.cumsum(self.sizes) - self.sizes
        if not len(starts) or int(self.sizes.min()) <= 0 or int(self.sizes.sum(dtype=np.int64)) != len(self.records):
            raise StoreCorrupt("outbox", 0, f"batch {self.id} is damaged")
        try:
            return [decode(self.records, start) for start in starts.tolist()]
        except (ValueError, IndexError, struct.error) as error:
            raise StoreCorrupt("outbox", 0, f"batch {self.id} is damaged: {error}") from error


class OutboxEntry(NamedTuple):
    """A batch to keep: its records, their sizes, and its destination."""

    records: bytearray
    sizes: npt.NDArray[np.int32]
    queue: MessageQueue | None = None
    sharding_key: str | None = None
    delayed: bool = False


class UnsentBatches(NamedTuple):
    """The batches of one send, and why they could not be sent."""

    topic: str
    batches: Sequence[OutboxEntry]
    error: str


class OutboxFile:
    """The file of an outbox. Thread-safe. Times are wall times in seconds.

    The file is closed while the process forks, and the next call opens it again. SQLite has internal records of the
    locks that a process holds, and a child inherits its parent's records. The child could find the file locked although
    no process has locked it, write into a log that the parent deletes, or wait for a thread that it does not have.

    Each method raises `sqlite3.Error` if the file is locked for long or the disk is full. Nothing has changed then.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        read_only: bool = False,
        elapsed: Callable[[], float] = boottime,
        boot: str | None = None,
    ) -> None:
        """Open or create the file.

        Raise InvalidInput if it cannot be opened or belongs to another program. Such a file is not changed.

        Args:
            read_only: change nothing; the file must exist.
            elapsed: returns the seconds since the machine booted.
            boot: the id of the machine's boot; None: the system's id.
        """
        self._elapsed = elapsed
        self._boot = boot_id() if boot is None else boot
        #: Held while the file is used, and during a fork, which a signal handler may do.
        self._lock = threading.RLock()
        #: Held while a thread waits for `_lock`. The others wait behind it, so a fork waits for one use and not for
        #: all.
        self._door = threading.RLock()
        self._owner = uuid.uuid4().hex
        self._uri = f"{Path(path).absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        #: None before the first use, and after a fork.
        self._opened: sqlite3.Connection | None = None
        self._closed = False
        register_fork_hooks(self, OutboxFile._let_go, OutboxFile._go_on)
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
        """Return the open database. The lock must be held."""
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
        """Raise InvalidInput if the file contains data of another program.

        Older outbox files have no application id.
        """
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        columns = {row[1] for row in self._db.execute("PRAGMA table_info(batches)")}
        is_new = not application and not tables and not read_only
        if not is_new and (application not in (0, _APPLICATION) or not columns >= _COLUMNS):
            raise InvalidInput("outbox", "an outbox of RayMQ, or a file that does not exist yet", str(path))

    def keep(self, *sends: UnsentBatches) -> list[int]:
        """Add batches after all others, all of them or none, and return their numbers.

        Together they cost one sync of the disk.
        """
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
                with contextlib.suppress(sqlite3.Error):  # if the disk is full, SQLite has rolled back already
                    self._db.execute("ROLLBACK")
                raise
        return numbers

    def batches(self) -> list[OutboxBatch]:
        """Return all batches, oldest first."""
        return self._select("ORDER BY id")

    def next(self, resting: Iterable[str] = ()) -> OutboxBatch | None:
        """Return the batch to send next, or None. Topics in `resting` are skipped."""
        due = "WHERE state = 'waiting' AND topic NOT IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT 1"
        return next(iter(self._select(due, json.dumps(list(resting)))), None)

    def remove(self, number: int) -> bool:
        """Remove a batch that was sent or is not to be sent.

        Return False if there was no such batch.
        """
        return self._change("DELETE FROM batches WHERE id = ?", number)

    def failed(self, number: int, error: str, *, refused: bool) -> None:
        """Record a failed attempt of a batch.

        `refused` means that another attempt would fail, too: the batch is not sent until `retry`.
        """
        state = "refused" if refused else "waiting"
        self._change("UPDATE batches SET tries = tries + 1, error = ?, state = ? WHERE id = ?", error, state, number)

    def retry(self, number: int) -> bool:
        """Let a refused batch wait again, in its old position.

        Return False if there is no such batch.
        """
        return self._change("UPDATE batches SET state = 'waiting' WHERE id = ?", number)

    def claim(self, seconds: float) -> bool:
        """Claim the right to send for `seconds`. Return False while another process has it.

        The claim must be renewed before it ends. Claims from before the machine's last boot do not count.
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
        """Give up the right to send (see `claim`) and close the file.

        It may be called again.
        """
        with self._using():
            with contextlib.suppress(sqlite3.Error):  # closed before, or locked: the claim expires
                self._db.execute("DELETE FROM lease WHERE owner = ?", (self._owner,))
            self._disconnect()
            self._closed = True

    def _change(self, statement: str, *values: object) -> bool:
        with self._using():
            return self._db.execute(statement, values).rowcount > 0

    def _select(self, rest: str, *values: object) -> list[OutboxBatch]:
        columns = "id, kept_at, topic, broker, queue_id, sharding_key, delayed, records, sizes, state, tries, error"
        with self._using():
            rows = self._db.execute(f"SELECT {columns} FROM batches {rest}", values).fetchall()  # noqa: S608 - constants
        return [
            OutboxBatch(
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
    """Return the sizes of a batch's records, or an empty array if they are damaged.

    `OutboxBatch.messages` then raises an error.
    """
    if not isinstance(sizes, bytes) or len(sizes) % 4:
        return np.zeros(0, np.int32)
    return np.frombuffer(sizes, "<i4").astype(np.int32)
