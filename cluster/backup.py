"""Backups of store directories: of a running broker, which is asked for a moment of its state, or of a stopped one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError
from raymq.actors.protocol import Tls
from raymq.actors.wire.commands.backup import begin_command, end_command, hold_command, read_begun, read_command
from raymq.actors.wire.frame import Command
from raymq.client import Connection
from raymq.cluster import found
from raymq.storage.backup.making import BackupReport, back_up
from raymq.storage.backup.manifest import Manifest
from raymq.storage.backup.progress import BackupProgress, ignore
from raymq.storage.backup.reading import read_catalog
from raymq.storage.backup.restoring import RestoreReport, restore
from raymq.storage.backup.source import Source, StoppedDirectory
from raymq.storage.backup.target import open_target
from raymq.storage.backup.verifying import BackupVerifyReport
from raymq.storage.backup.verifying import verify_backups as _verify
from raymq.storage.closing import Closing
from raymq.storage.directory_format import check_format
from raymq.storage.errors import BackupFailed, StoreLocked
from raymq.storage.paths import Paths
from raymq.storage.tables.broker_identity import BrokerOf, read_broker

_ASK_SECONDS: Final = 30.0
#: The broker forgets who says nothing for 30 s.
_RENEW_SECONDS: Final = 5.0

#: A path, or an address of Arrow's file systems, such as "s3://bucket/folder".
Place = str | os.PathLike[str]
OnProgress = Callable[[BackupProgress], None]


def backup_store(
    directory: str | os.PathLike[str],
    target: Place,
    *,
    name: str | None = None,
    keep: int | None = None,
    tls: Tls | None = None,
    progress: OnProgress = ignore,
) -> BackupReport:
    """Back up a broker's directory of this machine; the broker may run, and goes on.

    Args:
        target: where that broker's backups are; what is there already is not copied again.
        name: of the backup; by default the time of now.
        keep: let the oldest ones go, until there are so many; None: all stay.
        tls: how the broker is reached; by default as noted by who started its cluster.
        progress: told now and then how far it is.

    Raises:
        BrokerUnavailable: a process has the directory, and is no broker that answers. StoreFollows: it is a replica.
        InvalidInput: no store, another broker's target. BackupFailed, StoreFailed: none was made; others are as before.
    """
    path, place = Path(directory), open_target(os.fspath(target))
    with ExitStack() as resources:
        try:
            source: Source = resources.enter_context(StoppedDirectory(path))
        except StoreLocked as locked:
            source = resources.enter_context(RunningBroker(path, tls, locked))
        return back_up(source, place, name=name, keep=keep, progress=progress)


def restore_store(
    target: Place,
    directory: str | os.PathLike[str],
    *,
    at: str | None = None,
    new_address: bool = False,
    dry_run: bool = False,
    progress: OnProgress = ignore,
) -> RestoreReport:
    """See `raymq.storage.backup.restoring.restore`."""
    place = open_target(os.fspath(target))
    return restore(place, Path(directory), at=at, new_address=new_address, dry_run=dry_run, progress=progress)


def verify_backups(target: Place, *, at: str | None = None, progress: OnProgress = ignore) -> BackupVerifyReport:
    """Read all backups of a target, or the one of that name, and compare every byte with what was written."""
    return _verify(open_target(os.fspath(target)), at, progress)


def list_backups(target: Place) -> list[Manifest]:
    """The backups of a target, the oldest first; damaged ones are none: `verify_backups` names them."""
    return list(read_catalog(open_target(os.fspath(target))).backups)


class RunningBroker(Closing):
    """The `Source` of a broker that runs; what it holds is given back at the end of the `with`."""

    def __init__(self, directory: Path, tls: Tls | None, locked: StoreLocked) -> None:
        """Ask it for a moment of its state. `locked`: who has the directory."""
        self.directory = directory
        known = read_broker(Paths(directory).root / "raymq" / "broker.json")
        if not known.host or not known.port:
            raise BrokerUnavailable(known.name or str(directory), f"{locked}, and where it listens is not known")
        self._name, self._address = known.name, f"{known.host}:{known.port}"
        self._failure: RayMQError | None = None
        self._needed_from = 0
        self._over = threading.Event()
        with ExitStack() as resources:
            self._mq = resources.enter_context(Connection([self._address], tls=tls or _noted_tls(known)))
            begun = read_begun(self._ask(begin_command()))
            self._lease = begun.lease
            if begun.lock != Paths(directory).lock.stat().st_ino:
                raise BrokerUnavailable(begun.name, f"{self._address} has another directory, and {locked}")
            self.format = check_format(directory)
            self.broker = BrokerOf(begun.name, begun.cluster, known.host, begun.port, begun.epoch)
            self.log_begin = self._needed_from = begun.log_begin
            self.log_end, self.file_bytes, self.state_bytes = begun.log_end, begun.file_bytes, begun.state_bytes
            self._renewing = threading.Thread(target=self._renew, name="raymq-backup", daemon=True)
            self._renewing.start()
            resources.callback(self._end)
            self._resources = resources.pop_all()

    def parts(self) -> Iterator[bytes]:
        """See `Source`."""
        while part := bytes(self._ask(read_command(self._lease)).body):
            yield part

    def hold(self, log_from: int) -> None:
        """See `Source`; it is told to the broker a few seconds later."""
        self._needed_from = log_from
        if self._failure is not None:
            raise BackupFailed(f"{self._name} holds nothing for this backup any more: {self._failure}")

    def check(self) -> None:
        """See `Source`: who has begun another log, as a master that became a replica, holds nothing any more."""
        try:
            self._ask(hold_command(self._lease, self._needed_from))
        except RayMQError as error:
            self._failure = self._failure or error
        self.hold(self._needed_from)

    def _renew(self) -> None:
        while not self._over.wait(_RENEW_SECONDS):
            try:
                self._ask(hold_command(self._lease, self._needed_from))
            except RayMQError as error:
                self._failure = error
                return

    def _end(self) -> None:
        self._over.set()
        self._renewing.join()
        with suppress(RayMQError):
            self._ask(end_command(self._lease))

    def _ask(self, command: Command) -> Command:
        return self._mq.run(self._mq.pool.request(self._address, command, _ASK_SECONDS))

    def close(self) -> None:
        """Give back what it holds; may be called twice."""
        self._resources.close()


def _noted_tls(broker: BrokerOf) -> Tls | None:
    """What this user has noted of the broker's cluster."""
    with suppress(InvalidInput):
        noted: Any = found.load(broker.cluster) if broker.cluster else None
        return None if noted is None else noted.tls
    return None
