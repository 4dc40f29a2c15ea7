"""Staged writes (ours): records that many tasks bring, and that become visible together when their driver commits."""

from __future__ import annotations

import asyncio

from raymq.actors.broker.context import BrokerContext, integer, text
from raymq.actors.errors import InvalidInput, WriteUnknown
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.append import read_sizes
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    core = context.core

    def stage(_: ServerConnection, request: Command) -> Command:
        topic, queue_id = text(request, "topic"), integer(request, "queue_id")
        core.check_writable(topic, queue_id)
        core.staging.stage(
            text(request, "transaction"),
            text(request, "part"),
            integer(request, "number"),
            (topic, queue_id),
            memoryview(request.body),
            read_sizes(request),
        )
        return request.response(ResponseCode.SUCCESS)

    async def commit(_: ServerConnection, request: Command) -> Command:
        parts = request.fields.get("parts")
        if not isinstance(parts, list):
            raise InvalidInput("parts", "a list of part names", parts)
        added, transaction = 0, text(request, "transaction")
        for count in core.staging.commit(transaction, [str(part) for part in parts]):
            added += count
            await asyncio.sleep(0)
        # Whatever the store promises of appends: the staged data go when the log has them on disk.
        if context.durable is None:
            await asyncio.to_thread(core.store.flush)
        elif await context.durable() is not SendStatus.SEND_OK:
            raise WriteUnknown("the commit is not on disk yet: repeat it")
        core.staging.close(transaction)
        return request.response(ResponseCode.SUCCESS, {"added": added})

    def abort(_: ServerConnection, request: Command) -> Command:
        core.staging.abort(text(request, "transaction"))
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.STAGE_RECORDS: stage,
        RequestCode.COMMIT_STAGED: commit,
        RequestCode.ABORT_STAGED: abort,
    }
