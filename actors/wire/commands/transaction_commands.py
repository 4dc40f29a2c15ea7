"""The commands that end transactions, resume their checks and list open ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raymq.actors.protocol import SendStatus, TransactionOutcome
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.headers.transaction_headers import EndTransaction, ResumeCheckHalfMessage
from raymq.actors.wire.response_validation import number, protocol_checked
from raymq.storage.records.record import (
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    Record,
    decode,
)

#: RocketMQ's words for the outcomes: sys flags.
_FLAGS: Final = {
    TransactionOutcome.COMMIT: SYS_FLAG_TRANSACTION_COMMIT,
    TransactionOutcome.ROLLBACK: SYS_FLAG_TRANSACTION_ROLLBACK,
    TransactionOutcome.UNKNOWN: 0,
}
#: A field of RayMQ's own in the answer to END_TRANSACTION.
_STATUS: Final = "raymqStatus"


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A half message that waits for a decision, or was given up.

    Attributes:
        half: its record in its real topic and queue, at the offsets of the half topic.
        asked: how often its producers were asked.
    """

    half: Record
    asked: int


def end_command(
    producer_group: str,
    half: tuple[int, int],
    outcome: TransactionOutcome,
    unique_key: str,
    *,
    from_check: bool = False,
) -> Command:
    """Return END_TRANSACTION.

    Args:
        half: its offset in the half queue, and its physical offset.
        from_check: this answers a question of the broker, or comes from an administrator.
    """
    queue_offset, physical_offset = half
    return EndTransaction(
        producer_group=producer_group,
        tran_state_table_offset=queue_offset,
        commit_log_offset=physical_offset,
        commit_or_rollback=_FLAGS[outcome],
        from_transaction_check=from_check,
        msg_id=unique_key,
        transaction_id=unique_key,
    ).command()


def ended_answer(request: Command, status: SendStatus) -> Command:
    """Return the answer to END_TRANSACTION.

    It is SUCCESS as in RocketMQ; a field tells RayMQ's clients what the disk or replicas did not confirm.
    """
    return request.response(ResponseCode.SUCCESS, {} if status is SendStatus.SEND_OK else {_STATUS: status.value})


@protocol_checked
def end_status(answer: Command) -> SendStatus:
    """Return what disk and replicas confirmed of the end of a transaction."""
    return SendStatus(str(answer.fields.get(_STATUS, SendStatus.SEND_OK.value)))


def resume_command(topic: str, message_id: str) -> Command:
    """Return RESUME_CHECK_HALF_MESSAGE for the half with this message id."""
    return ResumeCheckHalfMessage(msg_id=message_id, topic=topic).command()


def outcome_of(flag: int) -> TransactionOutcome | None:
    """Return the outcome that a sys flag of RocketMQ stands for, or None."""
    return next((outcome for outcome, known in _FLAGS.items() if known == flag), None)


def list_command(*, given_up: bool, begin: int, most: int) -> Command:
    """Return LIST_TRANSACTIONS: request open transactions, or those that were given up.

    Args:
        begin: the first offset of the queue in which they are.
    """
    fields = {"given_up": given_up, "begin": begin, "most": most}
    return Command(RequestCode.LIST_TRANSACTIONS, fields, serialization=Serialization.MSGPACK)


def listed_answer(request: Command, listed: Sequence[tuple[bytes, int]], following: int | None) -> Command:
    """Return the answer to LIST_TRANSACTIONS.

    Args:
        listed: the record of each half, and how often its producers were asked.
        following: the `begin` of the next request; None: there are no more.
    """
    fields = {"asked": [asked for _, asked in listed], "sizes": [len(each) for each, _ in listed], "next": following}
    return request.response(ResponseCode.SUCCESS, fields, b"".join(record for record, _ in listed))


@protocol_checked
def read_listed(answer: Command) -> tuple[list[ListedTransaction], int | None]:
    """Return the transactions in an answer to LIST_TRANSACTIONS, and the next `begin`."""
    told: list[ListedTransaction] = []
    position = 0
    for asked, size in zip(answer.fields["asked"], answer.fields["sizes"], strict=True):
        told.append(ListedTransaction(decode(answer.body, position), number(asked)))
        position += number(size)
    following = answer.fields["next"]
    return told, None if following is None else number(following)
