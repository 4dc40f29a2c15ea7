"""Names: what a topic, a group and an actor may be called, and which names are the system's.

A topic's name becomes a directory's name, so nothing that is not in `NAME_PATTERN` may get past `check_topic`.
Source of the rules: RocketMQ's TopicValidator and Validators.
"""

from __future__ import annotations

import re
from functools import lru_cache

from raymq.storage import delay_levels
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import InvalidInput

NAME_PATTERN = re.compile(r"[%|a-zA-Z0-9_-]+")
MAX_TOPIC_CHARACTERS = 127
MAX_GROUP_CHARACTERS = 120
#: A cluster's name is its Ray namespace; a topic is named after it (`reply_topic`).
MAX_NAMESPACE_CHARACTERS = MAX_TOPIC_CHARACTERS - len("_REPLY_TOPIC")
#: Topics that the system derives from a group's name may be longer.
MAX_DERIVED_TOPIC_CHARACTERS = 255

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
#: Where messages for a chosen time wait; RocketMQ's TIMER_TOPIC.
TIMER_TOPIC = delay_levels.TIMER_TOPIC
#: The model of topics that a first message makes.
AUTO_CREATE_TOPIC = "TBW102"
#: The most queues that a topic may have on one broker.
MAX_QUEUES = 1024
#: How many queues such a topic gets on each broker (RocketMQ's defaultTopicQueueNums of a producer).
AUTO_CREATED_QUEUES = 4

#: RocketMQ's NOT_ALLOWED_SEND_TOPIC_SET.
UNSENDABLE_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
SYSTEM_TOPICS = UNSENDABLE_TOPICS | {AUTO_CREATE_TOPIC, "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"}
SYSTEM_PREFIX = "rmq_sys_"


def check_name(field: str, name: object, max_characters: int) -> str:
    """Return `name` if it may be used; InvalidInput names the rule that it breaks."""
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
    """A topic's name, derived ones (%RETRY%, %DLQ%) included."""
    derived = isinstance(name, str) and name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return check_name(field, name, MAX_DERIVED_TOPIC_CHARACTERS if derived else MAX_TOPIC_CHARACTERS)


def check_group(name: object, field: str = "group") -> str:
    """A consumer or producer group's name."""
    return check_name(field, name, MAX_GROUP_CHARACTERS)


@lru_cache(maxsize=1024)
def check_sendable(topic: object) -> str:
    """A topic that a user may send to. What was good once is found good at once: producers ask for every message."""
    name = check_topic(topic)
    if name in UNSENDABLE_TOPICS:
        raise InvalidInput("topic", "not one of the system's own topics", name)
    return name


def is_system_topic(topic: str) -> bool:
    """Whether `topic` is the system's in every cluster: its own, and those derived from groups."""
    return topic in SYSTEM_TOPICS or topic.startswith((SYSTEM_PREFIX, RETRY_PREFIX, DLQ_PREFIX))


def retry_topic(group: str) -> str:
    """Where a group's failed messages come again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Where a group's dead messages rest."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Where replies to requests are kept."""
    return f"{cluster}_REPLY_TOPIC"


def broker_name(index: int) -> str:
    """broker-a, broker-b, ... broker-z, broker-aa, ..."""
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return f"broker-{letters}"


def replica_name(broker: str, replica: int) -> str:
    """The actor name of a broker group's replica, from 0 on, which is that of its store's folder, too."""
    return f"{broker}.{replica}" if replica else broker


def name_server_name(index: int) -> str:
    """The actor name of the cluster's name server `index`."""
    return f"name-server-{index}"


def keeper_name(number: int) -> str:
    """The actor name of the cluster's keeper `number`, from 1 on."""
    return f"keeper-{number}"


def host_resource(host: str) -> str:
    """The custom resource that says "this is that machine"; see configs/ray-up-local.yaml."""
    return f"broker_{host}"


#: A Ray node that is only there for a Spark session has a resource that is called so.
SPARK_NODE_PREFIX = "raymq_spark_"

SCHEDULER_NAME = "scheduler"
COORDINATOR_NAME = "coordinator"
_PRODUCER_PREFIX = "producer:"


def is_broker_name(name: str) -> bool:
    """Whether it is one that `broker_name` or `replica_name` makes."""
    return re.fullmatch(r"broker-[a-z]{1,2}(\.[1-9][0-9]?)?", name) is not None


def is_replica_of(name: str, broker: str) -> bool:
    """Whether it is the actor name of a replica of that broker group."""
    return name == broker or re.fullmatch(re.escape(broker) + r"\.[1-9][0-9]?", name) is not None


def is_name_server_name(name: str) -> bool:
    """Whether it is one that `name_server_name` makes."""
    return re.fullmatch("name-server-[0-9]{1,2}", name) is not None


def is_keeper_name(name: str) -> bool:
    """Whether it is one that `keeper_name` makes."""
    return re.fullmatch("keeper-[1-9][0-9]?", name) is not None


def is_producer_name(name: str) -> bool:
    """Whether it is one that `producer_name` makes."""
    return name.startswith(_PRODUCER_PREFIX)


def producer_name(group: str) -> str:
    """The actor name of a group's shared producer."""
    return _PRODUCER_PREFIX + group
