"""Names of topics, groups and actors, and the names that the system reserves.

A topic's name becomes a directory's name, so `check_topic` accepts only names that match `NAME_PATTERN`. Source of the
rules: RocketMQ's TopicValidator and Validators.
"""

from __future__ import annotations

import re
from functools import lru_cache

from raymq.storage import delay_levels
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import InvalidInput
from raymq.storage.staged_topic import STAGED_TOPIC

NAME_PATTERN = re.compile(r"[%|a-zA-Z0-9_-]+")
MAX_TOPIC_CHARACTERS = 127
MAX_GROUP_CHARACTERS = 120
#: A cluster's name is its Ray namespace, and the prefix of a topic's name (`reply_topic`).
MAX_NAMESPACE_CHARACTERS = MAX_TOPIC_CHARACTERS - len("_REPLY_TOPIC")
#: Topics that the system derives from a group's name may be longer.
MAX_DERIVED_TOPIC_CHARACTERS = 255

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
#: The topic of timer messages until their time; RocketMQ's TIMER_TOPIC.
TIMER_TOPIC = delay_levels.TIMER_TOPIC
#: RocketMQ's topics of transactions: half messages, their ends, and halves that were asked for too often.
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
#: The topic to which RocketMQ's clients send the traces of messages.
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
#: The consumer group whose offsets are the progress of both half topics.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
#: The prefix of groups that brokers use themselves, as in RocketMQ; nobody else commits their offsets.
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
#: The template of topics that are auto-created by a first message.
AUTO_CREATE_TOPIC = "TBW102"
#: The most queues that a topic may have on one broker.
MAX_QUEUES = 1024
#: The number of queues of an auto-created topic on each broker (RocketMQ's defaultTopicQueueNums of a producer).
AUTO_CREATED_QUEUES = 4

#: RocketMQ's NOT_ALLOWED_SEND_TOPIC_SET, and the topic of staged rows.
UNSENDABLE_TOPICS = frozenset(
    {
        STAGED_TOPIC,
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
SYSTEM_TOPICS = UNSENDABLE_TOPICS | {AUTO_CREATE_TOPIC, "BenchmarkTest", TRACE_TOPIC}
SYSTEM_PREFIX = "rmq_sys_"


def check_name(field: str, name: object, max_characters: int) -> str:
    """Return `name` if it is valid; raise InvalidInput with the rule that it breaks."""
    if not isinstance(name, str):
        raise TypeError(f"{field} must be str, not {type(name).__name__}")
    if not name:
        raise InvalidInput(field, "at least 1 character", name)
    if len(name) > max_characters:
        raise InvalidInput(field, f"at most {max_characters} characters", name)
    if not NAME_PATTERN.fullmatch(name):
        raise InvalidInput(field, "only letters, digits and the characters % | _ -", name)
    return name


def check_topic(name: object, field: str = "topic") -> str:
    """Return a valid topic name, which may be a derived one (%RETRY%, %DLQ%)."""
    derived = isinstance(name, str) and name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return check_name(field, name, MAX_DERIVED_TOPIC_CHARACTERS if derived else MAX_TOPIC_CHARACTERS)


def check_group(name: object, field: str = "group") -> str:
    """Return a valid name of a consumer or producer group."""
    return check_name(field, name, MAX_GROUP_CHARACTERS)


def is_group(name: str) -> bool:
    """Return True if `check_group` accepts this name."""
    try:
        check_group(name)
    except InvalidInput:
        return False
    return True


@lru_cache(maxsize=1024)
def check_sendable(topic: object) -> str:
    """Return the name of a topic that a user may send to.

    The result is cached, because producers call this for every message.
    """
    name = check_topic(topic)
    if name in UNSENDABLE_TOPICS:
        raise InvalidInput("topic", "not one of the system's own topics", name)
    return name


def is_system_topic(topic: str) -> bool:
    """Return True if `topic` is a system topic in every cluster.

    Topics that are derived from groups are included.
    """
    return topic in SYSTEM_TOPICS or topic.startswith((SYSTEM_PREFIX, RETRY_PREFIX, DLQ_PREFIX))


def retry_topic(group: str) -> str:
    """Return the topic of a group's messages that are to be retried."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic of a cluster's replies to requests."""
    return f"{cluster}_REPLY_TOPIC"


def broker_name(index: int) -> str:
    """Return a broker's name: broker-a, broker-b, ... broker-z, broker-aa, ..."""
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return f"broker-{letters}"


def replica_name(broker: str, replica: int) -> str:
    """Return the actor name of a broker group's replica, which is numbered from 0.

    It is also the name of the directory of the replica's store.
    """
    return f"{broker}.{replica}" if replica else broker


def name_server_name(index: int) -> str:
    """Return the actor name of the cluster's name server `index`."""
    return f"name-server-{index}"


def keeper_name(number: int) -> str:
    """Return the actor name of the cluster's keeper `number`, from 1 on."""
    return f"keeper-{number}"


def host_resource(host: str) -> str:
    """Return the custom Ray resource of a machine; see configs/ray-up-local.yaml."""
    return f"broker_{host}"


#: The prefix of the resource of a Ray node that was started only for a Spark session.
SPARK_NODE_PREFIX = "raymq_spark_"

SCHEDULER_NAME = "scheduler"
COORDINATOR_NAME = "coordinator"
CONSOLE_NAME = "console"
_PRODUCER_PREFIX = "producer:"


def is_broker_name(name: str) -> bool:
    """Return True if `name` has the form of `broker_name` or `replica_name`."""
    return re.fullmatch(r"broker-[a-z]{1,2}(\.[1-9][0-9]?)?", name) is not None


def is_replica_of(name: str, broker: str) -> bool:
    """Return True if `name` is the actor name of a replica of that broker group."""
    return name == broker or re.fullmatch(re.escape(broker) + r"\.[1-9][0-9]?", name) is not None


def is_name_server_name(name: str) -> bool:
    """Return True if `name` has the form of `name_server_name`."""
    return re.fullmatch("name-server-[0-9]{1,2}", name) is not None


def is_keeper_name(name: str) -> bool:
    """Return True if `name` has the form of `keeper_name`."""
    return re.fullmatch("keeper-[1-9][0-9]?", name) is not None


def is_producer_name(name: str) -> bool:
    """Return True if `name` has the form of `producer_name`."""
    return name.startswith(_PRODUCER_PREFIX)


def producer_name(group: str) -> str:
    """Return the actor name of a group's shared producer."""
    return _PRODUCER_PREFIX + group
