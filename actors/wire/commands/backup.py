"""Backups of a running broker (ours): one moment of its state, and a lease on the log up to there."""

from __future__ import annotations

from typing import NamedTuple

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.told import number, reader, text


class BegunBackup(NamedTuple):
    """What a broker gives for a backup.

    Attributes:
        lease: what the other commands name it by.
        lock: the number that the file system has given to the lock of its directory: by it that is known.
        name, cluster, port, epoch: who the broker is.
        log_begin, log_end, file_bytes: the log at that moment, and the size of its files.
        state_bytes: how large the state beside it is.
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
    """BEGIN_BACKUP: note what there is now, and let no file of the log expire before it is told to.

    It ends with the connection, and where HOLD_BACKUP or READ_BACKUP do not come for a while.
    """
    return Command(RequestCode.BEGIN_BACKUP, serialization=Serialization.MSGPACK)


@reader
def read_begun(answer: Command) -> BegunBackup:
    """The answer to BEGIN_BACKUP."""
    fields = answer.fields
    return BegunBackup(
        text(fields["lease"]),
        number(fields["lock"]),
        text(fields["name"]),
        text(fields["cluster"]),
        number(fields["port"], most=65535),
        *(number(fields[name]) for name in ("epoch", "log_begin", "log_end", "file_bytes", "state_bytes")),
    )


def read_command(lease: str) -> Command:
    """READ_BACKUP: the next part of the state, for `read_frozen`; an empty body behind the last one."""
    return Command(RequestCode.READ_BACKUP, {"lease": lease}, serialization=Serialization.MSGPACK)


def hold_command(lease: str, log_from: int) -> Command:
    """HOLD_BACKUP: of the log only what lies there and behind is needed from now on."""
    fields = {"lease": lease, "log_from": log_from}
    return Command(RequestCode.HOLD_BACKUP, fields, serialization=Serialization.MSGPACK)


def end_command(lease: str) -> Command:
    """END_BACKUP: nothing is needed any more."""
    return Command(RequestCode.END_BACKUP, {"lease": lease}, serialization=Serialization.MSGPACK)
