"""RayMQ's client: what a program imports to send, receive and administrate.

Each name is imported when it is first asked for, so that a program loads the clients that it uses and no other.

What is in it, in the order to read it:
    connection: one loop, one socket per broker and the routes, for all clients of a process; message, results, errors.
    missing_topics: the topics that consumers wait for.
    produce, push, pull, pop, admin: one room for each kind of client; none of them knows another one.
    requests: how brokers are asked and queues fetched; members: groups, their members, subscriptions and queue locks.
    bulk: the door for Spark; task_connection: the connection of a Ray or Spark task.

The way of a message:
    produce.producer checks it, produce.encoding makes its record, and produce.batcher gathers those that lie together;
    actors.sending chooses a queue, asks its broker to store them, and tries another one where that fails;
    requests.fetching asks for what is new in a consumer's queues; received makes messages of the answer;
    push.engine shares queues among a group's members, push.delivery calls the listener, in order where that is asked;
    push.committing tells the broker how far all is done; what failed goes back by push.send_back.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raymq.actors.protocol import BrokerInfo, Corruption, MessageQueue, RecallStatus, SendStatus
    from raymq.client.admin.admin import Admin
    from raymq.client.admin.dead_letters import DeadMessage, RedriveResult
    from raymq.client.admin.operation import Operation
    from raymq.client.connection import Connection
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
        WorkFailed,
    )
    from raymq.client.health import Health, RunningCall, SetAside
    from raymq.client.members.subscription import Sql
    from raymq.client.message import Message, ReceivedMessage
    from raymq.client.pop.simple_consumer import SimpleConsumer
    from raymq.client.produce.producer import Producer
    from raymq.client.pull.pull_consumer import PullConsumer
    from raymq.client.push.consumer_settings import MessageModel
    from raymq.client.push.listener import ConsumeResult, Retry
    from raymq.client.push.push_consumer import PushConsumer
    from raymq.client.push.trace import TraceEvent, TraceState
    from raymq.client.requests.offsets import ConsumeFrom
    from raymq.client.results import (
        BrokerChange,
        ClusterInfo,
        Election,
        FoundMessages,
        KeeperInfo,
        NameServerInfo,
        QueueProgress,
        QueueStats,
        SchedulerInfo,
        SendResult,
        TableResult,
    )

__all__ = [
    "Admin",
    "Attempt",
    "BrokerChange",
    "BrokerInfo",
    "BrokerUnavailable",
    "ClientClosed",
    "ClusterInfo",
    "Connection",
    "ConsumeFrom",
    "ConsumeResult",
    "Corruption",
    "DeadMessage",
    "Election",
    "ElectionFailed",
    "FoundMessages",
    "GroupDeletion",
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
    "NameServerInfo",
    "NotRecallable",
    "NotStored",
    "OffsetOutOfRange",
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
    "TopicExists",
    "TopicNotFound",
    "TraceEvent",
    "TraceState",
    "WorkFailed",
]

#: Which names come from which module: the same as the imports above, which only type checkers see.
_NAMES = {
    "raymq.actors.protocol": (
        "BrokerInfo",
        "Corruption",
        "MessageQueue",
        "RecallStatus",
        "SendStatus",
    ),
    "raymq.client.admin.admin": ("Admin",),
    "raymq.client.admin.dead_letters": (
        "DeadMessage",
        "RedriveResult",
    ),
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
        "PartlyStored",
        "PermissionDenied",
        "QueueNotFound",
        "RayMQError",
        "StoreCorrupt",
        "StoreLocked",
        "SubscriptionMismatch",
        "TopicExists",
        "TopicNotFound",
        "WorkFailed",
    ),
    "raymq.client.health": (
        "Health",
        "RunningCall",
        "SetAside",
    ),
    "raymq.client.members.subscription": ("Sql",),
    "raymq.client.message": (
        "Message",
        "ReceivedMessage",
    ),
    "raymq.client.pop.simple_consumer": ("SimpleConsumer",),
    "raymq.client.produce.producer": ("Producer",),
    "raymq.client.pull.pull_consumer": ("PullConsumer",),
    "raymq.client.push.consumer_settings": ("MessageModel",),
    "raymq.client.push.listener": (
        "ConsumeResult",
        "Retry",
    ),
    "raymq.client.push.push_consumer": ("PushConsumer",),
    "raymq.client.push.trace": (
        "TraceEvent",
        "TraceState",
    ),
    "raymq.client.requests.offsets": ("ConsumeFrom",),
    "raymq.client.results": (
        "FoundMessages",
        "BrokerChange",
        "ClusterInfo",
        "Election",
        "GroupDeletion",
        "GroupSummary",
        "KeeperInfo",
        "NameServerInfo",
        "QueueProgress",
        "QueueStats",
        "SchedulerInfo",
        "SendResult",
        "TableResult",
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name, imported now; from then on it is an ordinary attribute. Any thread."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
