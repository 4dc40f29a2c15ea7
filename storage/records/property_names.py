"""Names of the standard message properties, as RocketMQ writes them into records.

A property that the machinery sets is a *system property*: a user does not set it by hand and does not see it among
his own. User properties are all the others.
"""

from __future__ import annotations

from typing import Final

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
BUYER_ID: Final = "BUYER_ID"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
MSG_TYPE: Final = "MSG_TYPE"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
CLUSTER: Final = "CLUSTER"
INSTANCE_ID: Final = "INSTANCE_ID"
SHARDING_KEY: Final = "__SHARDINGKEY"
CRC32: Final = "__CRC32#"
INNER_BATCH: Final = "INNER_BATCH"
INNER_NUM: Final = "INNER_NUM"

PGROUP: Final = "PGROUP"
TRAN_MSG: Final = "TRAN_MSG"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"

TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"

POP_CK: Final = "POP_CK"
POP_CK_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"

#: Ours: a copy that was delivered from the schedule topic says from which entry, "<level>:<queue offset>".
DELIVERED_FROM: Final = "RAYMQ_DELIVERED_FROM"
#: Ours: why the try before this one failed, in a message that is to be tried again.
FAILURE: Final = "RAYMQ_FAILURE"
#: Ours: why a message was put into its group's dead-letter queue.
DLQ_REASON: Final = "RAYMQ_DLQ_REASON"
#: Ours: which delivery by pop was a dead letter's last, "<topic>:<queue id>:<queue offset>:<pop time>".
DIED_IN: Final = "RAYMQ_DIED_IN"
#: Ours: which of its producer's batches this record begins; see `raymq.storage.records.producer_sequence`.
PRODUCER_SEQUENCE: Final = "RAYMQ_SEQUENCE"
#: Ours: a message that was sent to its group again says from which dead letter, by that one's message id.
REDRIVEN_FROM: Final = "RAYMQ_REDRIVEN_FROM"
#: Ours: the record says in its body which dead letters of its topic were deleted, see `core.redelivery.dead_letters`.
DELETED_LETTERS: Final = "RAYMQ_DELETED_LETTERS"

#: All of ours begin so.
OWN_PREFIX: Final = "RAYMQ_"
#: What only a broker sets, besides ours: it is taken off what a client sends.
OF_BROKERS: Final[frozenset[str]] = frozenset({REAL_TOPIC, REAL_QID, POP_CK, POP_CK_OFFSET, FIRST_POP_TIME})


def is_reserved(name: str) -> bool:
    """Whether a client has no say over a property."""
    return name in OF_BROKERS or name.startswith(OWN_PREFIX)


SYSTEM_PROPERTIES: Final[frozenset[str]] = frozenset(
    {
        KEYS,
        TAGS,
        UNIQ_KEY,
        WAIT,
        DELAY,
        REAL_TOPIC,
        REAL_QID,
        RETRY_TOPIC,
        ORIGIN_MESSAGE_ID,
        RECONSUME_TIME,
        MAX_RECONSUME_TIMES,
        CONSUME_START_TIME,
        MIN_OFFSET,
        MAX_OFFSET,
        BUYER_ID,
        CORRELATION_ID,
        REPLY_TO_CLIENT,
        TTL,
        MSG_TYPE,
        MSG_REGION,
        TRACE_ON,
        TRACE_CONTEXT,
        CLUSTER,
        INSTANCE_ID,
        SHARDING_KEY,
        CRC32,
        INNER_BATCH,
        INNER_NUM,
        PGROUP,
        TRAN_MSG,
        TRANSACTION_ID,
        TRANSACTION_CHECK_TIMES,
        CHECK_IMMUNITY_TIME,
        TRAN_PREPARED_QUEUE_OFFSET,
        TIMER_DELIVER_MS,
        TIMER_DELAY_MS,
        TIMER_DELAY_SEC,
        TIMER_OUT_MS,
        TIMER_ENQUEUE_MS,
        TIMER_DEQUEUE_MS,
        TIMER_ROLL_TIMES,
        TIMER_DEL_UNIQKEY,
        POP_CK,
        POP_CK_OFFSET,
        FIRST_POP_TIME,
        DELIVERED_FROM,
        FAILURE,
        DLQ_REASON,
        DIED_IN,
        PRODUCER_SEQUENCE,
        REDRIVEN_FROM,
        DELETED_LETTERS,
    }
)

#: Separates the keys within the KEYS property.
KEY_SEPARATOR: Final = " "
