"""RayMQ's client: the classes and functions that a program imports.

Each name is imported at its first use, so that a program loads only the clients that it uses.

What is in it, in the order to read it:
    connection: one event loop, one socket per broker and the routes, for all clients of a process.
    client_base: what all clients share; arguments: checks of the arguments of public calls.
    message, results, errors: the values that all clients share; listener_threads: the threads that call the program.
    produce, push, pull, pop, admin: one package for each kind of client; none of them imports another one.
    requests: requests to brokers; members: consumer groups, their members, subscriptions and queue locks.
    tracing: OpenTelemetry spans; receiving_client: what consumers with a receive call share.
    client_metrics, metrics_exporter: the counts of all clients, and where they are published.
    bulk: reads and writes of whole tables, for Spark; task_connection: the connection of a Ray or Spark task.
    body_display: bodies as text for people; arrow_body: bodies that are Arrow streams, checked and decoded.

The path of a message:
    produce.producer checks it, produce.message_encoder encodes its record, and produce.batcher gathers records.
    actors.sending picks a queue, sends the records to its broker, and tries another queue if that fails.
    push.queue_fetcher fetches new messages of a consumer's queues; message_decoder decodes the answer into messages.
    push.push_consumer_engine assigns queues to a group's members, push.consume_message_service calls the listener.
    push.offset_committer commits offsets; push.call_results sends failed messages back to the broker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raymq.actors.protocol import BrokerInfo, Corruption, MessageQueue, RecallStatus, SendStatus, TransactionOutcome
    from raymq.client.admin.admin import Admin
    from raymq.client.admin.cluster_health import ClusterHealth
    from raymq.client.admin.dead_letter_requests import DeadMessage, RedriveResult
    from raymq.client.admin.delayed_requests import DelayedMessage
    from raymq.client.admin.group_diagnosis import GroupDiagnosis
    from raymq.client.admin.message_trace import MessageTrace
    from raymq.client.admin.operation import Operation
    from raymq.client.connection import Connection
    from raymq.client.consumer_health import Health, RunningCall, SetAside
    from raymq.client.errors import (
        Attempt,
        BrokerUnavailable,
        ClientClosed,
        ElectionFailed,
        GroupNotFound,
        InvalidInput,
        MessageExpired,
        MessageNotFound,
        NotRecallable,
        NotStored,
        OffsetOutOfRange,
        OutcomeUnknown,
        PartlyStored,
        PermissionDenied,
        QueueNotFound,
        RayMQError,
        StoreCorrupt,
        StoreLocked,
        SubscriptionMismatch,
        TopicExists,
        TopicNotFound,
        TransactionEnded,
        WorkFailed,
    )
    from raymq.client.members.tag_filter import Sql
    from raymq.client.message import Message, ReceivedMessage
    from raymq.client.pop.simple_consumer import SimpleConsumer
    from raymq.client.produce.producer import Producer
    from raymq.client.produce.transaction import Transaction
    from raymq.client.pull.pull_consumer import PullConsumer
    from raymq.client.push.consumer_settings import MessageModel, TraceEvent, TraceState
    from raymq.client.push.listener import ConsumeResult, Retry
    from raymq.client.push.push_consumer import PushConsumer
    from raymq.client.requests.offset_requests import ConsumeFrom
    from raymq.client.results import (
        BrokerChange,
        BrokerRoute,
        ClusterInfo,
        Election,
        FoundMessages,
        GroupDeletion,
        GroupMemberInfo,
        GroupSummary,
        KeeperInfo,
        NameServerInfo,
        OpenTransaction,
        QueueProgress,
        QueueStats,
        SchedulerInfo,
        SendResult,
        TableResult,
        TopicConfig,
        TopicRates,
    )

__all__ = [
    "Admin",
    "Attempt",
    "BrokerChange",
    "BrokerInfo",
    "BrokerRoute",
    "BrokerUnavailable",
    "ClientClosed",
    "ClusterHealth",
    "ClusterInfo",
    "Connection",
    "ConsumeFrom",
    "ConsumeResult",
    "Corruption",
    "DeadMessage",
    "DelayedMessage",
    "Election",
    "ElectionFailed",
    "FoundMessages",
    "GroupDeletion",
    "GroupDiagnosis",
    "GroupMemberInfo",
    "GroupNotFound",
    "GroupSummary",
    "Health",
    "InvalidInput",
    "KeeperInfo",
    "Message",
    "MessageExpired",
    "MessageModel",
    "MessageNotFound",
    "MessageQueue",
    "MessageTrace",
    "NameServerInfo",
    "NotRecallable",
    "NotStored",
    "OffsetOutOfRange",
    "OpenTransaction",
    "Operation",
    "OutcomeUnknown",
    "PartlyStored",
    "PermissionDenied",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "QueueNotFound",
    "QueueProgress",
    "QueueStats",
    "RayMQError",
    "RecallStatus",
    "ReceivedMessage",
    "RedriveResult",
    "Retry",
    "RunningCall",
    "SchedulerInfo",
    "SendResult",
    "SendStatus",
    "SetAside",
    "SimpleConsumer",
    "Sql",
    "StoreCorrupt",
    "StoreLocked",
    "SubscriptionMismatch",
    "TableResult",
    "TopicConfig",
    "TopicExists",
    "TopicNotFound",
    "TopicRates",
    "TraceEvent",
    "TraceState",
    "Transaction",
    "TransactionEnded",
    "TransactionOutcome",
    "WorkFailed",
]

#: The module of each name: the same as the imports above, which only type checkers see.
_NAMES = {
    "raymq.actors.protocol": (
        "BrokerInfo",
        "Corruption",
        "MessageQueue",
        "RecallStatus",
        "SendStatus",
        "TransactionOutcome",
    ),
    "raymq.client.admin.admin": ("Admin",),
    "raymq.client.admin.dead_letter_requests": (
        "DeadMessage",
        "RedriveResult",
    ),
    "raymq.client.admin.cluster_health": ("ClusterHealth",),
    "raymq.client.admin.delayed_requests": ("DelayedMessage",),
    "raymq.client.admin.group_diagnosis": ("GroupDiagnosis",),
    "raymq.client.admin.message_trace": ("MessageTrace",),
    "raymq.client.admin.operation": ("Operation",),
    "raymq.client.connection": ("Connection",),
    "raymq.client.errors": (
        "Attempt",
        "BrokerUnavailable",
        "ClientClosed",
        "ElectionFailed",
        "GroupNotFound",
        "InvalidInput",
        "MessageExpired",
        "MessageNotFound",
        "NotRecallable",
        "NotStored",
        "OffsetOutOfRange",
        "OutcomeUnknown",
        "PartlyStored",
        "PermissionDenied",
        "QueueNotFound",
        "RayMQError",
        "StoreCorrupt",
        "StoreLocked",
        "SubscriptionMismatch",
        "TopicExists",
        "TopicNotFound",
        "TransactionEnded",
        "WorkFailed",
    ),
    "raymq.client.consumer_health": (
        "Health",
        "RunningCall",
        "SetAside",
    ),
    "raymq.client.members.tag_filter": ("Sql",),
    "raymq.client.message": (
        "Message",
        "ReceivedMessage",
    ),
    "raymq.client.pop.simple_consumer": ("SimpleConsumer",),
    "raymq.client.produce.producer": ("Producer",),
    "raymq.client.produce.transaction": ("Transaction",),
    "raymq.client.pull.pull_consumer": ("PullConsumer",),
    "raymq.client.push.consumer_settings": (
        "MessageModel",
        "TraceEvent",
        "TraceState",
    ),
    "raymq.client.push.listener": (
        "ConsumeResult",
        "Retry",
    ),
    "raymq.client.push.push_consumer": ("PushConsumer",),
    "raymq.client.requests.offset_requests": ("ConsumeFrom",),
    "raymq.client.results": (
        "FoundMessages",
        "BrokerChange",
        "BrokerRoute",
        "ClusterInfo",
        "Election",
        "GroupDeletion",
        "GroupMemberInfo",
        "GroupSummary",
        "KeeperInfo",
        "NameServerInfo",
        "OpenTransaction",
        "QueueProgress",
        "QueueStats",
        "SchedulerInfo",
        "SendResult",
        "TableResult",
        "TopicConfig",
        "TopicRates",
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use.

    From then on it is an ordinary attribute of the module. Thread-safe.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
