"""Backups of a running broker (ours): a snapshot of its state and a log lease.

The lease retains the log up to the time of the snapshot.
"""

from __future__ import annotations

from typing import NamedTuple

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.response_validation import number, protocol_checked, text


class BackupStart(NamedTuple):
    """A broker's answer to the start of a backup.

    Attributes:
        lease: the id by which the other commands name the backup.
        lock: the inode number of the lock file in the broker's directory; it identifies the directory.
        name, cluster, port, epoch: the broker's identity.
        log_begin, log_end, file_bytes: the log's range at the time of the snapshot, and the size of its files.
        state_bytes: the size of the state besides the log.
    """

    lease: str
    lock: int
    name: str
    cluster: str
    port: int
    epoch: int
    log_begin: int
    log_end: int
    file_bytes: int
    state_bytes: int


def begin_command() -> Command:
    """Return BEGIN_BACKUP: snapshot the state, and retain all files of the log.

    The backup ends with the connection, or if neither HOLD_BACKUP nor READ_BACKUP arrives for a while.
    """
    return Command(RequestCode.BEGIN_BACKUP, serialization=Serialization.MSGPACK)


@protocol_checked
def read_begun(answer: Command) -> BackupStart:
    """Return the backup in an answer to BEGIN_BACKUP."""
    fields = answer.fields
    return BackupStart(
        text(fields["lease"]),
        number(fields["lock"]),
        text(fields["name"]),
        text(fields["cluster"]),
        number(fields["port"], most=65535),
        *(number(fields[name]) for name in ("epoch", "log_begin", "log_end", "file_bytes", "state_bytes")),
    )


def read_command(lease: str) -> Command:
    """Return READ_BACKUP: read the next part of the state, for `read_snapshot_part`.

    The body of the answer is empty after the last part.
    """
    return Command(RequestCode.READ_BACKUP, {"lease": lease}, serialization=Serialization.MSGPACK)


def hold_command(lease: str, log_from: int) -> Command:
    """Return HOLD_BACKUP: retain the log only from the offset `log_from` on."""
    fields = {"lease": lease, "log_from": log_from}
    return Command(RequestCode.HOLD_BACKUP, fields, serialization=Serialization.MSGPACK)


def end_command(lease: str) -> Command:
    """Return END_BACKUP: end the backup and its lease."""
    return Command(RequestCode.END_BACKUP, {"lease": lease}, serialization=Serialization.MSGPACK)
