"""RayMQ's client: what a program imports to send, receive and administrate."""

from __future__ import annotations

from raymq.actors.protocol import BrokerInfo, Corruption, MessageQueue, RecallStatus, SendStatus
from raymq.client.admin.admin import Admin
from raymq.client.admin.dead_letters import DeadMessage, RedriveResult
from raymq.client.connection import Connection
from raymq.client.errors import (
    Attempt,
    BrokerUnavailable,
    ClientClosed,
    GroupNotFound,
    InvalidInput,
    MessageExpired,
    MessageNotFound,
    NotRecallable,
    NotStored,
    OffsetOutOfRange,
    OutcomeUnknown,
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
    ClusterInfo,
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
    "BrokerInfo",
    "BrokerUnavailable",
    "ClientClosed",
    "ClusterInfo",
    "Connection",
    "ConsumeFrom",
    "ConsumeResult",
    "Corruption",
    "DeadMessage",
    "GroupNotFound",
    "Health",
    "InvalidInput",
    "Message",
    "MessageExpired",
    "MessageModel",
    "MessageNotFound",
    "MessageQueue",
    "NameServerInfo",
    "NotRecallable",
    "NotStored",
    "OffsetOutOfRange",
    "OutcomeUnknown",
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
