"""Headers of the commands that end transactions and check them."""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.header import Header, Long, header, wire_field


@header(RequestCode.END_TRANSACTION)
class EndTransaction(Header):
    """Fields of a producer's decision about a half message.

    `tran_state_table_offset` is the half's offset in the half queue, `commit_log_offset` its physical offset. The value
    of `commit_or_rollback` is one of the sys flags of a transaction, 0 if it is undecided.
    """

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: int
    topic: str = ""
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str = ""


@header(RequestCode.CHECK_TRANSACTION_STATE)
class CheckTransactionState(Header):
    """Fields of a broker's question how a transaction has ended; the body is the message.

    `msg_id` and `transaction_id` are its unique key, `offset_msg_id` is its message id.
    """

    tran_state_table_offset: Long
    commit_log_offset: Long
    topic: str = ""
    msg_id: str = ""
    transaction_id: str = ""
    offset_msg_id: str = ""
    broker: str = wire_field("bname", default="")


@header(RequestCode.RESUME_CHECK_HALF_MESSAGE)
class ResumeCheckHalfMessage(Header):
    """Fields of an administrator's request to check a half message again."""

    msg_id: str
    topic: str = ""
