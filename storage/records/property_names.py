"""Names of the standard message properties, as RocketMQ writes them into records.

A *system property* is set by the client library or the broker. Users do not set it directly and do not see it among
their own properties. All other properties are user properties.
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

#: RayMQ's own: the schedule topic's entry from which this copy was delivered, "<level>:<queue offset>".
DELIVERED_FROM: Final = "RAYMQ_DELIVERED_FROM"
#: RayMQ's own: why the previous try failed, in a message that is to be tried again.
FAILURE: Final = "RAYMQ_FAILURE"
#: RayMQ's own: why a message was put into its group's dead-letter queue.
DLQ_REASON: Final = "RAYMQ_DLQ_REASON"
#: RayMQ's own: the last pop delivery of a dead letter, "<topic>:<queue id>:<queue offset>:<pop time>".
DIED_IN: Final = "RAYMQ_DIED_IN"
#: RayMQ's own: the producer's batch that this record begins; see `raymq.storage.records.producer_sequence`.
PRODUCER_SEQUENCE: Final = "RAYMQ_SEQUENCE"
#: RayMQ's own: the message id of the dead letter from which this message was sent to its group again.
REDRIVEN_FROM: Final = "RAYMQ_REDRIVEN_FROM"
#: RayMQ's own: the position of the half message that this copy replaces, "<queue offset>:<physical offset>".
PREPARED_AT: Final = "RAYMQ_PREPARED_AT"
#: RayMQ's own: the body lists deleted dead letters of the topic; see
#: `actors.broker.core.redelivery.dead_letter_redrive`.
DELETED_LETTERS: Final = "RAYMQ_DELETED_LETTERS"
#: RayMQ's own: the chunk of staged rows of which this record is a part, "<transaction>.<part>.<number>".
STAGED_CHUNK: Final = "RAYMQ_STAGED_CHUNK"

#: The prefix of all of RayMQ's own properties.
OWN_PREFIX: Final = "RAYMQ_"
#: The properties that only a broker sets, besides RayMQ's own. The broker removes them from what a client sends.
OF_BROKERS: Final[frozenset[str]] = frozenset({REAL_TOPIC, REAL_QID, POP_CK, POP_CK_OFFSET, FIRST_POP_TIME})


def is_reserved(name: str) -> bool:
    """Return True if a client cannot set a property of this name."""
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
        PREPARED_AT,
        STAGED_CHUNK,
    }
)

#: Separates the keys within the KEYS property.
KEY_SEPARATOR: Final = " "
