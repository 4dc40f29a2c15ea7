"""The sending family: append of ready-made records (ours), send-back of a failed message, staged writes (ours)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import numpy as np
import numpy.typing as npt

from raymq.actors.core.retry import STRAIGHT_TO_DLQ, Dead
from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import Placed, SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.context import BrokerContext, integer, text
from raymq.actors.wire.frame import Buffer, Command, Serialization
from raymq.actors.wire.server import Handler, ServerConnection


def append_command(
    topic: str,
    queue_id: int,
    records: Buffer,
    sizes: npt.NDArray[np.int32],
    *,
    delayed: bool = False,
    sequenced: bool = False,
) -> Command:
    """APPEND_RECORDS: records of one queue, made by `raymq.storage.record.encode` or its batch forms.

    Args:
        sequenced: the first record says which batch of its producer it begins (`raymq.storage.producer_sequence`).
    """
    fields = {"topic": topic, "queue_id": queue_id, "sizes": _pack(sizes, "<i4"), "delayed": delayed}
    if sequenced:
        fields["sequenced"] = True
    return Command(RequestCode.APPEND_RECORDS, fields, records, serialization=Serialization.MSGPACK)


def read_appended(answer: Command) -> tuple[SendStatus, Placed]:
    """The status and the places in an answer to APPEND_RECORDS."""
    fields = answer.fields
    return SendStatus(fields["status"]), Placed(
        fields["topic"],
        np.frombuffer(fields["queue_ids"], "<i4"),
        np.frombuffer(fields["queue_offsets"], "<i8"),
        np.frombuffer(fields["physical_offsets"], "<i8"),
    )


def send_back_command(
    group: str, topic: str, physical_offset: int, message_id: str, delay_level: int, max_reconsume_times: int | None
) -> Command:
    """CONSUMER_SEND_MSG_BACK: the message at `physical_offset` failed."""
    fields = {
        "offset": physical_offset,
        "group": group,
        "delayLevel": delay_level,
        "originMsgId": message_id,
        "originTopic": topic,
        "unitMode": False,
        "maxReconsumeTimes": max_reconsume_times,
    }
    return Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


def stage_command(
    transaction: str, part: str, number: int, lane: tuple[str, int], records: Buffer, sizes: npt.NDArray[np.int32]
) -> Command:
    """STAGE_RECORDS: keep a chunk until its transaction's commit."""
    fields = {
        "transaction": transaction,
        "part": part,
        "number": number,
        "topic": lane[0],
        "queue_id": lane[1],
        "sizes": _pack(sizes, "<i4"),
    }
    return Command(RequestCode.STAGE_RECORDS, fields, records, serialization=Serialization.MSGPACK)


def commit_staged_command(transaction: str, parts: Sequence[str]) -> Command:
    """COMMIT_STAGED: make the chunks of `parts` visible. May be repeated."""
    fields = {"transaction": transaction, "parts": list(parts)}
    return Command(RequestCode.COMMIT_STAGED, fields, serialization=Serialization.MSGPACK)


def abort_staged_command(transaction: str) -> Command:
    """ABORT_STAGED: forget the transaction's chunks."""
    return Command(RequestCode.ABORT_STAGED, {"transaction": transaction}, serialization=Serialization.MSGPACK)


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    core = context.core

    def append(_: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        topic, queue_id = text(request, "topic"), integer(request, "queue_id")
        delayed = bool(request.fields.get("delayed"))
        append_ = core.append_sequenced if request.fields.get("sequenced") else core.append
        octets = len(request.body)
        core.admission.enter(octets)
        try:
            placed = append_(topic, queue_id, memoryview(request.body), _sizes(request), delayed=delayed)
        except BaseException:
            core.admission.leave(octets)
            raise
        if core.store.config.flush != "sync":
            core.admission.leave(octets)
            return _appended(request, SendStatus.SEND_OK, placed)
        # A task of its own: it goes on, and the append stays under way, if the connection is lost meanwhile.
        durable = asyncio.ensure_future(context.durable())
        durable.add_done_callback(lambda _: core.admission.leave(octets))
        return acknowledge(request, placed, durable)

    async def acknowledge(request: Command, placed: Placed, durable: asyncio.Future[SendStatus]) -> Command:
        return _appended(request, await asyncio.shield(durable), placed)

    async def send_back(_: ServerConnection, request: Command) -> Command:
        limit = integer(request, "maxReconsumeTimes", STRAIGHT_TO_DLQ)
        group = text(request, "group")
        topics = len(core.topics())
        decision = core.redelivery.send_back(
            group, integer(request, "offset"), integer(request, "delayLevel", 0), None if limit < 0 else limit
        )
        if isinstance(decision, Dead) and len(core.topics()) != topics:
            await context.announce()
        await context.durable()
        return request.response(ResponseCode.SUCCESS)

    async def stage(_: ServerConnection, request: Command) -> Command:
        topic, queue_id = text(request, "topic"), integer(request, "queue_id")
        core.check_writable(topic, queue_id)
        core.staging.stage(
            text(request, "transaction"),
            text(request, "part"),
            integer(request, "number"),
            (topic, queue_id),
            memoryview(request.body),
            _sizes(request),
        )
        return request.response(ResponseCode.SUCCESS)

    async def commit(_: ServerConnection, request: Command) -> Command:
        parts = request.fields.get("parts")
        if not isinstance(parts, list):
            raise InvalidInput("parts", "a list of part names", parts)
        added = 0
        for count in core.staging.commit(text(request, "transaction"), [str(part) for part in parts]):
            added += count
            await asyncio.sleep(0)
        await context.durable()
        return request.response(ResponseCode.SUCCESS, {"added": added})

    def abort(_: ServerConnection, request: Command) -> Command:
        core.staging.abort(text(request, "transaction"))
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.APPEND_RECORDS: append,
        RequestCode.CONSUMER_SEND_MSG_BACK: send_back,
        RequestCode.STAGE_RECORDS: stage,
        RequestCode.COMMIT_STAGED: commit,
        RequestCode.ABORT_STAGED: abort,
    }


def _appended(request: Command, status: SendStatus, placed: Placed) -> Command:
    fields = {
        "status": status.value,
        "topic": placed.topic,
        "queue_ids": _pack(placed.queue_ids, "<i4"),
        "queue_offsets": _pack(placed.queue_offsets, "<i8"),
        "physical_offsets": _pack(placed.physical_offsets, "<i8"),
    }
    return request.response(ResponseCode.SUCCESS, fields)


def _pack(array: npt.NDArray[np.int32] | npt.NDArray[np.int64], dtype: str) -> bytes:
    return array.astype(dtype, copy=False).tobytes()


def _sizes(request: Command) -> npt.NDArray[np.int32]:
    packed = request.fields.get("sizes")
    if not isinstance(packed, bytes) or len(packed) % 4 or not packed:
        raise InvalidInput("sizes", "the records' sizes, 4 bytes each, at least one", packed)
    return np.frombuffer(packed, "<i4").astype(np.int32)
