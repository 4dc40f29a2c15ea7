"""Handle backups (RayMQ's own): a snapshot of the state, and a lease on the log.

The lease covers the log up to the snapshot.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from raymq.actors.broker.context import BrokerContext, int_field, text_field
from raymq.actors.broker.handlers.broker_command import Commands, reads
from raymq.actors.errors import InvalidInput
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core = context.core
    backups, store = core.backups, core.store

    def begin(connection: ServerConnection, request: Command) -> Command:
        status = context.status()
        lease = backups.begin()
        connection.add_close_callback(lambda: backups.end(lease.id))
        fields = {
            "lease": lease.id,
            "lock": (Path(store.directory) / "lock").stat().st_ino,
            "name": status.name,
            "cluster": core.cluster,
            "port": int(status.address.rpartition(":")[2]),
            "epoch": status.epoch,
            "log_begin": lease.log_begin,
            "log_end": lease.state.log_end,
            "file_bytes": store.config.commitlog_file_bytes,
            "state_bytes": lease.state.total_bytes,
        }
        return request.response(ResponseCode.SUCCESS, fields)

    async def read(_: ServerConnection, request: Command) -> Command:
        lease = backups.renew(text_field(request, "lease"))
        answer = request.response(ResponseCode.SUCCESS)
        answer.body = await asyncio.to_thread(next, lease.parts, b"")
        return answer

    def hold(_: ServerConnection, request: Command) -> Command:
        log_from = int_field(request, "log_from")
        if log_from < 0:
            raise InvalidInput("log_from", "a position in the log", log_from)
        backups.renew(text_field(request, "lease"), log_from)
        return request.response(ResponseCode.SUCCESS)

    def end(_: ServerConnection, request: Command) -> Command:
        backups.end(text_field(request, "lease"))
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.BEGIN_BACKUP: reads(begin),
        RequestCode.READ_BACKUP: reads(read),
        RequestCode.HOLD_BACKUP: reads(hold),
        RequestCode.END_BACKUP: reads(end),
    }
