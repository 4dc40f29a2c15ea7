"""Create, change and delete the topics of one broker.

When a call returns, its change survives a crash of the process. It survives a crash of the machine after the next
`Store.sync_state`; the request handler awaits that call without blocking the event loop. The cost of a change
depends on what is changed only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from raymq.actors.errors import (
    InvalidInput,
    PermissionDenied,
    TopicExists,
    UnknownAttribute,
    topic_not_found,
)
from raymq.actors.naming import MAX_QUEUES, SYSTEM_PREFIX, SYSTEM_TOPICS, check_topic
from raymq.actors.protocol import MESSAGE_TYPE, PERM_INHERIT, PERM_READ, PERM_WRITE, MessageType, QueueData
from raymq.storage.cooperative_steps import Steps, run_steps
from raymq.storage.errors import StoreError
from raymq.storage.files.json_file import DataVersion
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig

#: RocketMQ's sums of inherit 1, write 2 and read 4.
MAX_PERM = 7

#: How many topics are checked or created per step, which takes some milliseconds.
_STEP_TOPICS: Final = 200

#: Whether messages have one tag or several.
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")

#: RocketMQ's TopicAttributes: the values that each attribute may have, None for a whole number.
ATTRIBUTES: Mapping[str, tuple[str, ...] | None] = {
    "queue.type": ("BatchCQ", "SimpleCQ"),
    "cleanup.policy": ("DELETE", "COMPACTION"),
    MESSAGE_TYPE: ("UNSPECIFIED", *(each.value for each in MessageType)),
    "reserve.time": None,
}


@dataclass(frozen=True, slots=True)
class TopicChange:
    """The settings that an administrator requests for a topic.

    Attributes:
        attributes: changes of RocketMQ's attributes: "+key" -> value sets one, "-key" removes it. Others stay.
        filter_type, sys_flag: RocketMQ's.
    """

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ | PERM_WRITE
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    filter_type: str = FILTER_TYPES[0]
    sys_flag: int = 0


class TopicManager:
    """The topics of one broker. Used on the broker's event loop.

    Attributes:
        system: the names of the topics that the broker creates for itself.
        permission: what clients may do with any topic here; it limits the permission of each topic.
        on_permission_change: called when `permission` has changed; every topic must then be registered again with the
            name servers.
    """

    def __init__(self, broker: str, store: Store, system: Collection[str], on_delete: Callable[[str], None]) -> None:
        """Create the manager; `on_delete` is called with the name of each deleted topic."""
        self.system = frozenset(system)
        self.permission = PERM_READ | PERM_WRITE
        self.on_permission_change: Callable[[], None] = lambda: None
        self._broker = broker
        self._store = store
        self._on_delete = on_delete

    def __contains__(self, name: str) -> bool:
        return self._store.topic_configs.get(name) is not None

    def get(self, name: str) -> TopicConfig:
        """Return a topic's settings. Raise TopicNotFound if there is no such topic."""
        config = self._store.topic_configs.get(name)
        if config is None:
            raise topic_not_found(name, self._broker)
        return config

    def all(self) -> dict[str, TopicConfig]:
        """Return the settings of every topic by name."""
        return self._store.topic_configs.all()

    @property
    def version(self) -> DataVersion:
        """Return the version of the topic table, which differs after each change."""
        return self._store.topic_configs.version

    def set_permission(self, permission: int) -> None:
        """Set what clients may do with all topics here: a sum of PERM_READ and PERM_WRITE.

        A topic's own permission still limits it further.
        """
        self.permission = permission
        self.on_permission_change()

    def advertised_queues(self) -> dict[str, QueueData]:
        """Return the queue data of every topic that is registered with the name servers."""
        return {name: self._queues(config) for name, config in self.all().items()}

    def changed_since(self, version: DataVersion) -> dict[str, QueueData | None] | None:
        """Return the registered queue data of the topics changed after `version`.

        The value of a deleted topic is None. The result is None if there were too many changes since then to tell.
        """
        names = self._store.topic_configs.changed_since(version)
        if names is None:
            return None
        configs = {name: self._store.topic_configs.get(name) for name in names}
        return {name: None if config is None else self._queues(config) for name, config in configs.items()}

    def _queues(self, config: TopicConfig) -> QueueData:
        allowed = config.perm & (self.permission | PERM_INHERIT)
        return QueueData(self._broker, config.read_queues, config.write_queues, allowed)

    def create(
        self,
        name: str,
        queues: int,
        *,
        ordered: bool = False,
        exclusive: bool = False,
        attributes: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """Create a topic with `queues` queues, and return False if it already existed.

        An existing topic with other settings is changed to these.

        Args:
            attributes: RocketMQ's, as in `TopicChange`. Without any those of an existing topic stay.
            exclusive: raise TopicExists if the topic exists with other settings, instead of changing it.
        """
        check_topic(name)
        _check_queues("queues", queues)
        known = self._store.topic_configs.get(name)
        if known is not None:
            altered = _altered(known.attributes, attributes)
            if exclusive and altered != known.attributes:
                raise TopicExists(
                    f"topic {name} exists with other attributes: {dict(known.attributes)}, asked for {altered}",
                    remedy="change it with Admin.update_topic",
                )
            if exclusive and (known.write_queues != queues or known.order != ordered):
                raise TopicExists(
                    f"topic {name} exists with {known.write_queues} queues, ordered={known.order}; "
                    f"asked for {queues}, ordered={ordered}",
                    remedy="ask for the same settings, or change the topic with Admin.update_topic",
                )
            wanted = queues, queues, ordered, altered
            if (known.write_queues, known.read_queues, known.order, known.attributes) == wanted:
                return False
        altered = _altered({} if known is None else known.attributes, attributes)
        self._store.topic_configs.put_soon(TopicConfig(name, queues, queues, PERM_READ | PERM_WRITE, ordered, altered))
        return known is None

    def check_topic_limit(self, name: str) -> None:
        """Raise TopicNotFound if the limit of automatically created topics is reached."""
        most = self._store.config.max_auto_topics
        if len(self._store.topic_configs) >= most:
            more = "Admin.delete_topic deletes topics that are not needed, or raise max_auto_topics"
            raise topic_not_found(name, f"{self._broker}, which has {most} topics", more=more)

    def change(self, changes: Iterable[TopicChange]) -> None:
        """Create or change topics as an administrator requests, all or none of them.

        Raises:
            InvalidInput, UnknownAttribute: a setting is invalid, which the error names; also for the system's own
                topics.
        """
        run_steps(self.change_steps(changes))

    def change_steps(self, changes: Iterable[TopicChange]) -> Steps[None]:
        """Do `change` in steps; all changes are checked before the first is made."""
        configs: list[TopicConfig] = []
        for change in changes:
            configs.append(self._changed(change))
            if len(configs) % _STEP_TOPICS == 0:
                yield None
        for first in range(0, len(configs), _STEP_TOPICS):
            if first:
                yield None
            self._store.topic_configs.put_soon(*configs[first : first + _STEP_TOPICS])

    def delete(self, name: str) -> bool:
        """Delete a topic and its queues, and return False if there was none.

        A topic that is created later under the same name begins at offset 0. The deletion is durable after the next
        `Store.sync_state`, together with the groups' offsets: without it, a loss of power could bring the old
        offsets back to a recreated topic.
        """
        if check_topic(name) in self.system | SYSTEM_TOPICS:
            raise PermissionDenied(f"{name} is one of the system's own topics")
        if name not in self:
            return False
        before = self._store.incarnation(name)
        try:
            self._store.delete_topic_soon(name)
        except StoreError:
            if self._store.incarnation(name) != before:  # its queues are gone, and its settings could not be deleted
                self._on_delete(name)
            raise
        self._on_delete(name)
        return True

    def _changed(self, change: TopicChange) -> TopicConfig:
        name = check_topic(change.name)
        if name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX):
            raise InvalidInput("topic", "not one of the system's own topics", name)
        _check_queues("readQueueNums", change.read_queues)
        _check_queues("writeQueueNums", change.write_queues)
        if not 0 <= change.perm <= MAX_PERM:
            raise InvalidInput("perm", f"0..{MAX_PERM}", change.perm)
        if change.filter_type not in FILTER_TYPES:
            raise InvalidInput("topicFilterType", " or ".join(FILTER_TYPES), change.filter_type)
        known = self._store.topic_configs.get(name)
        filter_fields = {"topicFilterType": change.filter_type, "topicSysFlag": change.sys_flag}
        return TopicConfig(
            name,
            change.read_queues,
            change.write_queues,
            change.perm,
            change.order,
            _altered({} if known is None else known.attributes, change.attributes),
            filter_fields if known is None else {**known.others, **filter_fields},
        )


def _check_queues(field_name: str, queues: int) -> None:
    if not 1 <= queues <= MAX_QUEUES:
        raise InvalidInput(field_name, f"1..{MAX_QUEUES}", queues)


def _altered(known: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    altered = dict(known)
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if sign not in ("+", "-") or name not in ATTRIBUTES:
            raise UnknownAttribute("attributes", f'"+" or "-" and one of {", ".join(ATTRIBUTES)}', signed)
        if sign == "-":
            altered.pop(name, None)
            continue
        values = ATTRIBUTES[name]
        if value not in values if values is not None else not value.isdecimal():
            raise UnknownAttribute(name, "a whole number" if values is None else "one of " + ", ".join(values), value)
        altered[name] = value
    return altered
