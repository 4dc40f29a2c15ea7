"""Back up the store directories of running and stopped brokers.

A running broker provides a snapshot of its state.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError
from raymq.actors.protocol import Tls
from raymq.actors.wire.commands.backup_commands import (
    begin_command,
    end_command,
    hold_command,
    read_begun,
    read_command,
)
from raymq.actors.wire.frame import Command
from raymq.client import Connection
from raymq.cluster import cluster_file
from raymq.storage.backup.backup_manifest import Manifest
from raymq.storage.backup.backup_progress import BackupProgress, ignore_progress
from raymq.storage.backup.backup_reader import read_catalog
from raymq.storage.backup.backup_restore import RestoreReport, restore
from raymq.storage.backup.backup_source import BackupSource, StoppedDirectory
from raymq.storage.backup.backup_target import open_target
from raymq.storage.backup.backup_verification import BackupVerifyReport
from raymq.storage.backup.backup_verification import verify_backups as _verify
from raymq.storage.backup.backup_writer import BackupReport, create_backup
from raymq.storage.closeable import Closeable
from raymq.storage.directory_format import check_format
from raymq.storage.errors import BackupFailed, StoreLocked
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.broker_identity import BrokerIdentity, read_broker_identity

_REQUEST_SECONDS: Final = 30.0
#: The broker ends the lease of a client that sends nothing for 30 s.
_RENEW_SECONDS: Final = 5.0

#: A path, or an address of Arrow's file systems, such as "s3://bucket/folder".
BackupTarget = str | os.PathLike[str]
OnProgress = Callable[[BackupProgress], None]


def backup_store(
    directory: str | os.PathLike[str],
    target: BackupTarget,
    *,
    name: str | None = None,
    keep: int | None = None,
    tls: Tls | None = None,
    progress: OnProgress = ignore_progress,
) -> BackupReport:
    """Back up a broker's directory of this machine; the broker may run.

    Args:
        directory: the broker's store directory.
        target: the target of that broker's backups; files that it has already are not copied again.
        name: the name of the backup; by default the current time.
        keep: the number of backups to keep; the oldest ones are deleted. None: all are kept.
        tls: the TLS settings for the broker's sockets; by default those that the start of its cluster recorded.
        progress: called from time to time with the progress.

    Raises:
        BrokerUnavailable: another process than an answering broker has the directory open.
        StoreFollows: the directory is a replica's.
        InvalidInput: the directory has no store, or the target is another broker's.
        BackupFailed, StoreFailed: no backup was made; the other backups are unchanged.
    """
    path, place = Path(directory), open_target(os.fspath(target))
    with ExitStack() as resources:
        try:
            source: BackupSource = resources.enter_context(StoppedDirectory(path))
        except StoreLocked as locked:
            source = resources.enter_context(RunningBrokerSource(path, tls, locked))
        return create_backup(source, place, name=name, keep=keep, progress=progress)


def restore_store(
    target: BackupTarget,
    directory: str | os.PathLike[str],
    *,
    at: str | None = None,
    new_address: bool = False,
    dry_run: bool = False,
    progress: OnProgress = ignore_progress,
) -> RestoreReport:
    """Restore a backup into a directory; see `raymq.storage.backup.backup_restore.restore`."""
    place = open_target(os.fspath(target))
    return restore(place, Path(directory), at=at, new_address=new_address, dry_run=dry_run, progress=progress)


def verify_backups(
    target: BackupTarget, *, at: str | None = None, progress: OnProgress = ignore_progress
) -> BackupVerifyReport:
    """Read all backups of a target, or the named one, and verify every byte."""
    return _verify(open_target(os.fspath(target)), at, progress)


def list_backups(target: BackupTarget) -> list[Manifest]:
    """Return the backups of a target, the oldest first.

    Damaged backups are left out; `verify_backups` names them.
    """
    return list(read_catalog(open_target(os.fspath(target))).backups)


class RunningBrokerSource(Closeable):
    """The `BackupSource` of a running broker; its lease ends with the `with` block."""

    def __init__(self, directory: Path, tls: Tls | None, locked: StoreLocked) -> None:
        """Request a snapshot of the broker's state.

        `locked` is the error that names the process that has the directory.
        """
        self.directory = directory
        known = read_broker_identity(StorePaths(directory).root / "raymq" / "broker.json")
        if not known.host or not known.port:
            raise BrokerUnavailable(known.name or str(directory), f"{locked}, and its address is not known")
        self._name, self._address = known.name, f"{known.host}:{known.port}"
        self._failure: RayMQError | None = None
        self._needed_from = 0
        self._over = threading.Event()
        with ExitStack() as resources:
            self._mq = resources.enter_context(Connection([self._address], tls=tls or _saved_tls(known)))
            begun = read_begun(self._request(begin_command()))
            self._lease = begun.lease
            if begun.lock != StorePaths(directory).lock.stat().st_ino:
                raise BrokerUnavailable(
                    begun.name, f"the broker at {self._address} has another directory, and {locked}"
                )
            self.format = check_format(directory)
            self.broker = BrokerIdentity(begun.name, begun.cluster, known.host, begun.port, begun.epoch)
            self.log_begin = self._needed_from = begun.log_begin
            self.log_end, self.file_bytes, self.state_bytes = begun.log_end, begun.file_bytes, begun.state_bytes
            self._renewing = threading.Thread(target=self._renew, name="raymq-backup", daemon=True)
            self._renewing.start()
            resources.callback(self._end)
            self._resources = resources.pop_all()

    def parts(self) -> Iterator[bytes]:
        """Yield the parts of the state; see `BackupSource`."""
        while part := bytes(self._request(read_command(self._lease)).body):
            yield part

    def hold(self, log_from: int) -> None:
        """Hold the log from an offset on; see `BackupSource`.

        The broker is informed a few seconds later.
        """
        self._needed_from = log_from
        if self._failure is not None:
            raise BackupFailed(f"{self._name} does not retain its log for this backup any more: {self._failure}")

    def check(self) -> None:
        """Verify that the broker still holds the data of the backup; see `BackupSource`.

        A broker that has begun another log, such as a master that became a replica, no longer holds it.
        """
        try:
            self._request(hold_command(self._lease, self._needed_from))
        except RayMQError as error:
            self._failure = self._failure or error
        self.hold(self._needed_from)

    def _renew(self) -> None:
        while not self._over.wait(_RENEW_SECONDS):
            try:
                self._request(hold_command(self._lease, self._needed_from))
            except RayMQError as error:
                self._failure = error
                return

    def _end(self) -> None:
        self._over.set()
        self._renewing.join()
        with suppress(RayMQError):
            self._request(end_command(self._lease))

    def _request(self, command: Command) -> Command:
        return self._mq.run(self._mq.pool.request(self._address, command, _REQUEST_SECONDS))

    def close(self) -> None:
        """End the lease of the backup; may be called twice."""
        self._resources.close()


def _saved_tls(broker: BrokerIdentity) -> Tls | None:
    """Return the recorded TLS settings of the broker's cluster, None if there are none."""
    with suppress(InvalidInput):
        noted: Any = cluster_file.load(broker.cluster) if broker.cluster else None
        return None if noted is None else noted.tls
    return None
