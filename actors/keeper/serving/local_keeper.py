"""A keeper with its file and its thread, called with message bodies.

It has no socket; `handlers` connects it to a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from raymq.actors.keeper.acceptor import Acceptor, KeeperState
from raymq.actors.keeper.keeper_codec import decode_call, encode_answer
from raymq.actors.keeper.keeper_file import DurableKeeperFile
from raymq.actors.keeper.keeper_messages import KeeperRefused, Reason
from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.serving.decision_thread import DecisionThread
from raymq.actors.wire.commands.keeper_commands import KeeperStatus
from raymq.storage.clock import boottime
from raymq.storage.errors import InvalidInput, StoreCorrupt, StoreError
from raymq.storage.files import fileutil
from raymq.storage.files.directory_lock import DirectoryLock

#: The most seconds that a stop waits for the disk.
_STOP_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


class LocalKeeper:
    """One keeper of this process. Made by `open`, used and stopped on one event loop."""

    def __init__(self, number: int, cluster: str, path: Path, *, clock: Callable[[], float] = boottime) -> None:
        """Lock the keeper's file for this process; see `open`."""
        self.number = number
        self.cluster = cluster
        self._path = path
        self._clock = clock
        # Two processes of one keeper, such as a former one that has not ended yet, would make conflicting promises.
        fileutil.make_folder(path.parent)
        self._lock = DirectoryLock(path.with_suffix(".lock"), path.with_suffix(".pid"))
        self._file = DurableKeeperFile(path)
        self._acceptor: Acceptor | None = None
        self._thread = DecisionThread(f"keeper-{number}")

    @classmethod
    async def open(cls, number: int, cluster: str, path: Path, *, clock: Callable[[], float] = boottime) -> LocalKeeper:
        """Open the keeper whose file is at `path`.

        Without a file, or with a damaged one, the keeper has no vote.

        Raises:
            StoreLocked: another process serves the keeper.
            StoreBusy, StoreFailed: the file cannot be read (now).
            InvalidInput: the file belongs to another keeper.
        """
        keeper = cls(number, cluster, path, clock=clock)
        try:
            await keeper._thread.decide(keeper._load)
        except BaseException:
            await keeper.stop()
            raise
        return keeper

    @property
    def status(self) -> KeeperStatus:
        """Return the keeper's status, as far as this process knows it."""
        acceptor = self._acceptor
        state = KeeperState.DAMAGED if acceptor is None else acceptor.state
        record = None if acceptor is None else acceptor.record
        keepers = KeeperSet() if record is None else record.keepers
        return KeeperStatus(
            self.number,
            "" if record is None else record.incarnation,
            state.value,
            os.getpid(),
            keepers.number,
            {number: member.incarnation for number, member in keepers.members.items()},
        )

    @property
    def record(self) -> KeeperRecord | None:
        """Return the saved record; None without a file that can be read."""
        return None if self._acceptor is None else self._acceptor.record

    def ask(self, body: bytes, seen: int) -> asyncio.Future[tuple[bytes, int]]:
        """Return the body of the answer to a call, and the record's count of saves.

        Args:
            seen: the greatest count that this keeper has reported to the client; see `Acceptor.handle`.

        Raises:
            InvalidInput: the body is not a call. ServerBusy: too many calls wait.
        """
        call = decode_call(body)

        def decide() -> tuple[bytes, int]:
            acceptor = self._acceptor
            if acceptor is None:
                return encode_answer(KeeperRefused(Reason.NOT_A_VOTER)), 0
            before = acceptor.state
            answer = acceptor.handle(call, seen)
            if acceptor.state is not before and acceptor.state in {KeeperState.OLDER_COPY, KeeperState.FAILED}:
                _log.error("keeper %d has no vote any more: %s (%s)", self.number, acceptor.state.value, self._path)
                if acceptor.state is KeeperState.OLDER_COPY:
                    with contextlib.suppress(
                        StoreError
                    ):  # after a restart a client's call with a greater count shows it again
                        self._file.quarantine()
            return encode_answer(answer), 0 if acceptor.record is None else acceptor.record.saves

        return self._thread.decide(decide)

    async def found(self, record: KeeperRecord) -> None:
        """Begin as one of a new set of keepers that have received no call yet.

        It does nothing if the keeper has begun with this record already.

        Raises:
            InvalidInput: the keeper has a file of another incarnation, which is never replaced here.
            StoreCorrupt: the keeper has a file, which is damaged. StoreFull, StoreFailed: not begun.
        """

        def begin() -> None:
            known = self._file.load()
            if known is None:
                self._begin(record, just_founded=True)
            elif known.incarnation != record.incarnation:
                raise InvalidInput("keeper", f"no other record at {self._path}", f"a record of cluster {known.cluster}")

        self._check_mine(record)
        await self._thread.decide(begin)

    async def reset(self, record: KeeperRecord) -> None:
        """Begin as a keeper that the others are about to add; drop its former record.

        It is allowed only for a keeper that the others have removed, because its promises are lost. Raise StoreFull or
        StoreFailed if it was not begun.
        """
        self._check_mine(record)
        await self._thread.decide(lambda: self._begin(record, just_founded=False))

    async def stop(self) -> None:
        """Stop the thread and release the file's lock."""
        await self._thread.stop(_STOP_SECONDS)
        self._lock.release()

    def _check_mine(self, record: KeeperRecord) -> None:
        if (record.number, record.cluster) != (self.number, self.cluster):
            raise InvalidInput(
                "keeper", f"keeper {self.number} of {self.cluster}", f"{record.number} of {record.cluster}"
            )

    def _begin(self, record: KeeperRecord, *, just_founded: bool) -> None:
        self._file.save(record)
        self._acceptor = Acceptor(record, self._file, self._clock, just_founded=just_founded)

    def _load(self) -> None:
        try:
            record = self._file.load()
        except StoreCorrupt as error:
            _log.error("keeper %d has no vote: %s", self.number, error)
            return
        if record is not None:
            self._check_mine(record)
        self._acceptor = Acceptor(record, self._file, self._clock)
