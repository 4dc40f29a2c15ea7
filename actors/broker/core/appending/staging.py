"""Staged writes of one broker: records of many tasks become visible together, once, when their write is committed.

A commit may be repeated after any failure: what is in the log already is not appended again. While it goes on, and
until all of it is on disk, a veil hides it: readers see all of its records in a queue, or none. After a crash the veil
is down again before anything is served.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.appending.stored_rows import Sought, StoredRows, whole
from raymq.actors.broker.core.copies.copying import STAGED, Copying, Duty, Place
from raymq.actors.broker.core.copies.rewriting import Append
from raymq.actors.broker.core.writes.following import Following
from raymq.actors.naming import UNSENDABLE_TOPICS
from raymq.storage.errors import StoreCorrupt, StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.log.past_damage import Damage
from raymq.storage.records.batch import strided
from raymq.storage.records.record import MIN_RECORD_BYTES, OFFSET_QUEUE_ID
from raymq.storage.steps import Steps
from raymq.storage.store import Store
from raymq.storage.tables.staged_chunk import StagedChunk, read_chunk, read_topic_queue
from raymq.storage.tables.staging import (
    OVER_SECONDS,
    DecidedCommit,
    MissingRows,
    StagedFile,
    StagedRecords,
    remove_swept,
    swept_in,
)

_T = TypeVar("_T")
#: Why a row does not come of which it cannot be told whether it is there.
_UNDECIDED = "the log is damaged where it may be: it is not stored again"


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """What a commit has to do.

    Attributes:
        decided: what was written down when it was begun; None: it was not.
        files: of all chunks of its parts, in the order in which they are appended.
        topic_queues, rows: the queues and the number of rows that they tell of, where it was not begun.
    """

    decided: DecidedCommit | None
    files: Sequence[StagedFile]
    topic_queues: Collection[tuple[str, int]] = ()
    rows: int = 0


class Staging:
    """Takes chunks, and appends those of the parts that won. `elapsed` is seconds that do not go back."""

    def __init__(
        self,
        store: Store,
        append: Append,
        copying: Copying,
        arrived: Callable[[Sequence[tuple[str, int]]], None],
        elapsed: Callable[[], float],
    ) -> None:
        """`arrived` is told of the queues of which more may be read."""
        self._store = store
        self._append = append
        self._copying = copying
        self._arrived = arrived
        self._elapsed = elapsed
        self._files = StagedRecords(store.directory)
        #: What is to be asked about, and told.
        self.following = Following(elapsed)
        #: When each of those ended whose marks are kept.
        self._over: dict[str, float] = {}
        self._restore()

    def _restore(self) -> None:
        """Have everything as it was before the last end: first of all the veils."""
        for each in self._files.transactions():
            if each.commit is not None:
                self._lower_again(each.name, each.commit, with_room=False)
            if each.over is not None:
                self._over[each.name] = self._elapsed()
            if each.over == "committed" and each.home:
                self.following.done(each.name, each.home)
            elif each.over is None and each.home:
                self.following.found(each.name, each.home)
            elif each.commit is None:  # nobody can decide about it, so nobody will
                self._over.setdefault(each.name, self._elapsed())

    def stage(
        self,
        transaction: str,
        part: str,
        number: int,
        topic_queue: tuple[str, int],
        records: memoryview,
        sizes: npt.NDArray[np.int32],
        home: str = "",
    ) -> None:
        """Keep a chunk of `topic_queue`'s records; nobody sees them before the commit.

        Args:
            home: the broker that decides about the transaction.

        Raises:
            InvalidInput: a record that could not be appended, or a transaction that is decided; nothing is kept.
            StoreFull: the disk is too full for an append, too. StoreFailed.
        """
        self.staging(transaction, part, number, topic_queue, records, sizes, home)()

    def staging(
        self,
        transaction: str,
        part: str,
        number: int,
        topic_queue: tuple[str, int],
        records: memoryview,
        sizes: npt.NDArray[np.int32],
        home: str,
    ) -> Callable[[], None]:
        """`stage`, of which what waits for the disk is returned, to be called on any thread; both raise its errors."""
        self._store.check_room()
        self._store.check(records, sizes, topic_queue)
        incarnation = self._store.incarnation(topic_queue[0])
        if home:  # before the rows are there: nobody would ask about them if they came later
            self.following.touched(transaction, home)
        chunk = transaction, part, number, topic_queue, records, sizes
        topic_id = None if topic_queue[0] in UNSENDABLE_TOPICS else self._id_of(topic_queue[0])
        return lambda: self._files.add(*chunk, home=home, incarnation=incarnation, topic_id=topic_id)

    def count_under_way(self) -> int:
        """How many transactions have rows here of which it is not over what becomes of them. Any thread."""
        return sum(each.over is None for each in self._files.transactions())

    def home_of(self, transaction: str) -> str | None:
        """Who decides about a transaction that has, or had, rows here; None: nobody is known to."""
        return self._files.home_of(transaction)

    def is_committed(self, transaction: str) -> bool:
        """Whether all of it is in the log, on disk."""
        return self._files.is_committed(transaction)

    def is_closed(self, transaction: str) -> bool:
        """Whether that is so, all may see it, and its data are gone."""
        return self._files.is_committed(transaction) and self._files.decided(transaction) is None

    def is_begun(self, transaction: str) -> bool:
        """Whether its commit was begun here: its parts are written down, and it has to come to its end."""
        return self._files.decided(transaction) is not None and not self._files.is_committed(transaction)

    def plan(self, transaction: str, parts: Collection[str]) -> CommitPlan:
        """What `commit` has to do: a look at all files of these parts. Any thread, when nothing is staged any more.

        Raises:
            StoreFailed: the files cannot be read. StoreFull, StoreFailed: it was begun, and that cannot be kept.
        """
        decided = self._files.decided(transaction)
        if decided is not None:  # whoever wrote that may have failed before it was on disk
            self._files.decide(transaction, decided)
            return CommitPlan(decided, self._files.listed(transaction, decided.parts))
        files = self._files.listed(transaction, parts)
        topic_queues: set[tuple[str, int]] = set()
        rows = 0
        for told in (read_topic_queue(file.path) for file in files):
            if told is not None:
                topic_queues.add(told[0])
                rows += told[1]
        return CommitPlan(None, files, topic_queues, rows)

    def begin(
        self, transaction: str, parts: Collection[str], rows: int | None, plan: CommitPlan
    ) -> tuple[CommitPlan, Callable[[], None]]:
        """Hide what was found for a commit that was not begun yet.

        Args:
            rows: as `commit`.

        Returns:
            the plan as it is begun; and what writes down that these parts are committed, to be called on any thread
            before `commit`. `not_begun` has to follow where that fails.

        Raises:
            StoreFull, StoreFailed: it is not begun.
        """
        # What waits for a time or a level is for no reader to see there.
        topic_queues = {
            topic_queue
            for topic_queue in plan.topic_queues
            if self._is_there(topic_queue[0]) and topic_queue[0] not in UNSENDABLE_TOPICS
        }
        cut = self._cut(topic_queues)
        if rows is not None and plan.rows != rows:
            self._refuse(transaction, f"{rows} rows were staged here, {plan.rows} are there")
        undecided = DecidedCommit((), {}, 0, cut=cut)
        topic_queues = {(topic, undecided.queue_of(topic, queue_id)) for topic, queue_id in topic_queues}
        try:
            ends = self._store.veils.lower(transaction, dict.fromkeys(topic_queues))
        except StoreError:
            self.not_begun(transaction)
            raise
        topic_ids = {topic: self._id_of(topic) or "" for topic, _ in topic_queues}
        absent = 0 if rows is None else max(0, rows - plan.rows)
        place = self._store.max_physical_offset
        decided = DecidedCommit(tuple(parts), ends, place, topic_ids, found=plan.rows, absent=absent, cut=cut)

        def keep() -> None:
            failpoint("staged.before_commit")
            self._files.decide(transaction, decided)
            failpoint("staged.after_commit")

        return replace(plan, decided=decided), keep

    def not_begun(self, transaction: str) -> None:
        """It could not be written down: nothing of it is in the log, and it hides nothing until it is begun again."""
        # What may be there all the same hides again from where it did, and readers must not have seen more meanwhile.
        if not self.is_begun(transaction) and (topic_queues := self._store.veils.lift(transaction)):
            self._arrived(topic_queues)

    def missing(self, transaction: str) -> MissingRows | None:
        """How many rows of a transaction that is committed are not there, and why; None: all are. Any thread."""
        return self._files.missing(transaction)

    def is_here(self, transaction: str) -> bool:
        """Whether there are, or were lately, rows of it here. Any thread."""
        return self._files.is_here(transaction)

    def commit(
        self, transaction: str, parts: Collection[str], rows: int | None = None, plan: CommitPlan | None = None
    ) -> Iterator[int]:
        """Append every chunk of `parts`; yields after each how many records it added, so that the loop can breathe.

        Where an earlier commit was interrupted it also yields 0s while it looks for what is in the log already.
        `close` has to follow when the log is flushed: until then nobody sees them.

        Args:
            rows: how many the parts have here together; that some are missing is told and does not hold up the others.
            plan: for these parts, and begun; without it the files are looked at here, and it is written down here.
        """
        if self._files.is_committed(transaction):
            return
        plan = plan or self.plan(transaction, parts)
        if plan.decided is None:
            plan, keep = self.begin(transaction, parts, rows, plan)
            keep()
        else:
            self._lower_again(transaction, plan.decided, with_room=True)
        decided = plan.decided
        assert decided is not None
        stored = StoredRows(
            self._store.walk_past_damage,
            self._store.max_physical_offset,
            {*_topics(decided), *UNSENDABLE_TOPICS},
            (decided.log_from, decided.ends),
            lambda damage: self._pass(transaction, damage),
        )
        doubtful = [] if decided.doubtful_to is None else [(decided.log_from, decided.doubtful_to)]
        for file in plan.files:
            if not file.is_done:
                added = yield from self._append_chunk(transaction, file, stored, doubtful, decided)
                failpoint("staged.between_chunks")
                yield added
            elif doubtful:
                yield from self._claim(file, stored, doubtful, decided)

    def _pass(self, transaction: str, damage: Damage) -> None:
        """Tell of damage where rows of a commit are looked for: it does not hold up the others."""
        place = Place(physical_offset=damage.begin, message_id=self._copying.message_id(damage.begin))
        self._copying.refuse(Duty(STAGED, transaction), [place], damage.reason)

    def close(self, transaction: str) -> None:
        """All of a transaction was appended and flushed: its data are not needed any more, and all may see it."""
        self.mark_committed(transaction)
        self.closed(transaction)
        self.empty(transaction)

    def mark_committed(self, transaction: str) -> None:
        """The first part of `close`, which waits for the disk. Any thread; StoreFull, StoreFailed: it is not done."""
        if not self.is_closed(transaction):  # else what says which rows are missing is gone
            self._files.close(transaction)

    def closed(self, transaction: str) -> None:
        """The second part of `close`: all may see it."""
        self._end(transaction)
        home = self._files.home_of(transaction)
        if home is not None:
            self.following.done(transaction, home)

    def empty(self, transaction: str) -> None:
        """The last part of `close` and `abort`: remove the data of what is over. Any thread."""
        self._files.empty(transaction)

    def abort(self, transaction: str) -> None:
        """Forget a transaction that will not be committed; one that is committed is left alone."""
        self.drop(transaction)
        self.empty(transaction)

    def drop(self, transaction: str) -> None:
        """The first part of `abort`: nothing of it will be seen, nor can anything be added."""
        self.mark_dropped(transaction)
        self.dropped(transaction)

    def mark_dropped(self, transaction: str) -> None:
        """The first part of `drop`, which waits for the disk. Any thread, while no commit of it begins."""
        self._files.drop(transaction)

    def dropped(self, transaction: str) -> None:
        """The second part of `drop`: nobody waits for it any more."""
        if self._files.is_committed(transaction):
            self.following.not_open(transaction)
        elif self._files.decided(transaction) is None:
            self._end(transaction)
            self.following.over(transaction)

    def sweep(self) -> Callable[[], None] | None:
        """What removes the marks of what has been over for long, to be called on another thread; or None."""
        limit = self._elapsed() - OVER_SECONDS
        over = [name for name, ended in self._over.items() if ended <= limit and self.following.is_told(name)]
        for transaction in over:
            del self._over[transaction]
        root = self._store.directory / "raymq" / "staged"
        if not over and not swept_in(root):
            return None

        def remove() -> None:
            for transaction in over:
                self._files.put_aside(transaction)
            remove_swept(swept_in(root))

        return remove

    def _end(self, transaction: str) -> None:
        self._over.setdefault(transaction, self._elapsed())
        topic_queues = self._store.veils.lift(transaction)
        if topic_queues:
            self._arrived(topic_queues)

    def _lower_again(self, transaction: str, decided: DecidedCommit, *, with_room: bool) -> None:
        """Have what a commit was begun with be hidden again, also what it has appended to topics that were deleted."""
        topics = {topic for topic, _ in decided.ends}
        # Older versions did not write down which topics these were.
        same = {topic for topic in topics if decided.topic_ids.get(topic, self._id_of(topic)) == self._id_of(topic)}
        now = {topic_queue for topic_queue in decided.ends if topic_queue[0] in same and self._is_there(topic_queue[0])}
        veils = self._store.veils
        veils.lower(
            transaction,
            {topic_queue: end for topic_queue, end in decided.ends.items() if topic_queue in now},
            with_room=with_room,
        )
        veils.lower_on_deleted(
            transaction, {topic_queue: end for topic_queue, end in decided.ends.items() if topic_queue not in now}
        )

    def _id_of(self, topic: str) -> str | None:
        """Which topic of that name is there; None: none."""
        config = self._store.topic_configs.get(topic)
        return None if config is None else config.topic_id

    def _is_there(self, topic: str) -> bool:
        return topic in UNSENDABLE_TOPICS or self._store.topic_configs.get(topic) is not None

    def _cut(self, topic_queues: Collection[tuple[str, int]]) -> dict[str, tuple[int, int]]:
        """See `DecidedCommit`: a queue that was taken from its topic since, and is not read, gets no more rows."""
        cut = {}
        for topic, queue_id in topic_queues:
            config = self._store.topic_configs.get(topic)
            if config is not None and queue_id >= config.read_queues:
                cut[topic] = config.read_queues, max(1, min(config.read_queues, config.write_queues))
        return cut

    def _append_chunk(
        self,
        transaction: str,
        file: StagedFile,
        stored: StoredRows,
        doubtful: Sequence[tuple[int, int]],
        decided: DecidedCommit,
    ) -> Generator[int, None, int]:
        """Append what is missing of one chunk; how many records. One that nothing can be made of is set aside."""
        path = file.path
        try:
            chunk = _placed(read_chunk(path), decided)
        except StoreCorrupt as error:
            told = read_topic_queue(path)
            self._lose(transaction, path, None if told is None else told[1], error.reason)
            return 0
        if self._is_deleted(chunk):
            self._lose(transaction, path, len(chunk.sizes), f"topic {chunk.topic} was deleted")
            return 0
        attempts = self._files.attempts(chunk) if file.is_attempted else []
        sought = whole(chunk)
        if attempts or doubtful:
            sought = yield from _breathing(stored.missing(chunk, [*doubtful, *attempts]))
        for number in sought.undecided:
            self._refuse(f"{transaction}, record {number} of {path.name}", _UNDECIDED)
        return self._attempt(transaction, sought)

    def _is_deleted(self, chunk: StagedChunk) -> bool:
        """Whether a chunk is one of a topic that was deleted since, made again or not."""
        if not self._is_there(chunk.topic) or self._store.incarnation(chunk.topic) > chunk.incarnation:
            return True
        return chunk.topic_id is not None and self._id_of(chunk.topic) != chunk.topic_id

    def _claim(
        self, file: StagedFile, stored: StoredRows, doubtful: Sequence[tuple[int, int]], decided: DecidedCommit
    ) -> Generator[int, None, None]:
        """Leave to a chunk that is in the log what stands for it there."""
        with contextlib.suppress(StoreCorrupt):
            chunk = _placed(read_chunk(file.path), decided)
            attempts = self._files.attempts(chunk) if file.is_attempted else []
            yield from _breathing(stored.claim(chunk, [*doubtful, *attempts]))

    def _lose(self, transaction: str, path: Path, rows: int | None, reason: str) -> None:
        """Nothing can be made of a chunk's file: that is told."""
        self._refuse(f"{transaction}, {path.name}", reason)
        self._files.lose(path, rows, reason)

    def _refuse(self, owner: str, reason: str) -> None:
        """Tell that some of the rows do not come."""
        self._copying.refuse(Duty(STAGED, owner), [Place()], reason)

    def _attempt(self, transaction: str, sought: Sought) -> int:
        """`_add` what is missing of a chunk, and note in which part of the log that was; how many records.

        A chunk of which rows do not come has no mark that it is done: a commit that is repeated looks at it again, and
        tells the same.
        """
        chunk = sought.chunk
        self._files.declare(chunk, self._store.max_physical_offset)
        try:
            refused = self._add(transaction, sought)
            failpoint("staged.before_done")
            lost = [_UNDECIDED] * len(sought.undecided) + refused
            if lost:
                self._files.lose(chunk.path, len(lost), "; ".join(dict.fromkeys(lost)))
                self._files.interrupt(chunk, self._store.max_physical_offset)
            else:
                self._files.finish(chunk, self._store.max_physical_offset)
        except Exception:
            with contextlib.suppress(StoreError):  # the disk takes nothing from others either, until the next opening
                self._files.interrupt(chunk, self._store.max_physical_offset)
            raise
        return len(chunk.sizes) - len(refused)

    def _add(self, transaction: str, sought: Sought) -> list[str]:
        """Append records of a chunk; those that were damaged since they were staged are set aside: why, of each."""
        chunk, numbers = sought.chunk, sought.numbers
        records, sizes = chunk.records, chunk.sizes
        ends = np.cumsum(sizes, dtype=np.int64)
        topic_queue = chunk.topic, chunk.queue_id
        refused: list[str] = []

        def append(part: range) -> None:
            begin, end = int(ends[part[0]] - sizes[part[0]]), int(ends[part[-1]])
            self._append(records[begin:end], sizes[part.start : part.stop], topic_queue)

        def refuse(part: range, reason: str) -> None:
            for number in part:
                owner = f"{transaction}, record {numbers[number]} of {chunk.path.name}"
                self._copying.refuse(Duty(STAGED, owner), [Place(*topic_queue)], reason)
            refused.extend([reason] * len(part))

        self._copying.by_halves(range(len(sizes)), append, lambda _, __: None, refuse)
        return refused


def _placed(chunk: StagedChunk, decided: DecidedCommit) -> StagedChunk:
    """A chunk as it is appended: its queue may have been taken from its topic since it was staged."""
    queue_id = decided.queue_of(chunk.topic, chunk.queue_id)
    if queue_id == chunk.queue_id or int(chunk.sizes.min(initial=MIN_RECORD_BYTES)) < MIN_RECORD_BYTES:
        return chunk
    records = bytearray(chunk.records)
    starts = np.cumsum(chunk.sizes, dtype=np.int64) - chunk.sizes
    strided(records, ">i4")[starts + OFFSET_QUEUE_ID] = queue_id
    return replace(chunk, queue_id=queue_id, records=memoryview(records))


def _topics(decided: DecidedCommit) -> set[str]:
    return {topic for topic, _ in decided.ends}


def _breathing(steps: Steps[_T]) -> Generator[int, None, _T]:
    """`steps` as what `commit` yields: none of them has added anything, nor needs another thread."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        yield 0
