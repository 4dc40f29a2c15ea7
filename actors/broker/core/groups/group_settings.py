"""Manage the settings and permissions of the consumer groups of one broker.

When a call returns, its change survives a crash of the process; it survives a crash of the machine after the next
`Store.sync_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from raymq.actors.errors import InvalidInput, PermissionDenied, group_not_found
from raymq.actors.naming import SYSTEM_GROUP_PREFIX, check_group, check_topic
from raymq.storage.cooperative_steps import Steps, run_steps
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig

#: RocketMQ's bit of a group's forbidden table.
_READ = 1
#: The valid values of a group's settings; names and forms are RocketMQ's.
_NUMBERS = {"retryMaxTimes": (-1, 1 << 30), "retryQueueNums": (0, 1024), "consumeTimeoutMinute": (1, 1 << 20)}
_FLAGS = ("consumeEnable", "consumeBroadcastEnable", "consumeFromMinEnable", "consumeMessageOrderly")
#: How many groups are checked or created per step.
_STEP_GROUPS: Final = 40


class GroupSettings:
    """The settings of all groups. Used on the broker's event loop.

    `ensure` creates a group's retry topic, and returns True if it is new.
    """

    def __init__(self, store: Store, ensure: Callable[[str], bool]) -> None:
        self._store = store
        self._ensure = ensure

    def __contains__(self, group: str) -> bool:
        return self._store.group_configs.get(group) is not None

    def all(self) -> dict[str, GroupConfig]:
        """Return the settings of every group by name."""
        return self._store.group_configs.all()

    def get(self, group: str) -> GroupConfig:
        """Return a group's settings. Raise GroupNotFound if there is no such group."""
        config = self._store.group_configs.get(check_group(group))
        if config is None:
            raise group_not_found(group)
        return config

    def change(self, changes: Iterable[Mapping[str, Any]]) -> bool:
        """Run all steps of `change_steps` at once."""
        return run_steps(self.change_steps(changes))

    def change_steps(self, changes: Iterable[Mapping[str, Any]]) -> Steps[bool]:
        """Create or change groups, in steps.

        Settings that a change (RocketMQ's object) does not name stay as they are. All changes are checked before the
        first is made. Of several changes of a group the last one counts.

        Returns:
            Whether a retry topic was created.

        Raises:
            InvalidInput: a setting is invalid, which the error names; nothing changed.
        """
        configs = self._store.group_configs
        requested: dict[str, Mapping[str, Any]] = {}
        for number, change in enumerate(changes):
            if number and number % _STEP_GROUPS == 0:
                yield None
            config = self._changed(change)
            configs.check(config)
            requested[config.name] = change
        waiting, new_topics = list(requested.items()), 0
        for first in range(0, len(waiting), _STEP_GROUPS):
            if first:
                yield None
            some = waiting[first : first + _STEP_GROUPS]
            # Compute it again, because another request may have changed the group since.
            updated = [self._changed(change) for _, change in some]
            changed = [config for config in updated if config != configs.get(config.name)]
            if changed:
                configs.put_soon(*changed)
            new_topics += sum([self._ensure(name) for name, _ in some])
        return new_topics > 0

    def delete(self, group: str, *, with_offsets: bool) -> None:
        """Delete a group's settings, and its offsets if requested.

        Nothing happens if there is no such group.
        """
        self._store.group_configs.delete_soon(check_group(group))
        if with_offsets:
            for topic in self._store.consumer_offsets.topics_of(group):
                self._store.consumer_offsets.delete(group, topic)

    def permit_all(self, group: str) -> None:
        """Remove all topic bans of a group."""
        for topic in list(self._store.group_configs.forbidden.get(group, {})):
            self._store.group_configs.forbid(group, topic, 0)

    def can_read(self, group: str, topic: str) -> bool:
        """Return True unless the group is forbidden to read the topic."""
        return not self._store.group_configs.forbidden.get(group, {}).get(topic, 0) & _READ

    def can_consume(self, group: str, topic: str) -> bool:
        """Return True if `check_may_consume` would pass."""
        config = self._store.group_configs.get(group)
        return (config is None or config.consume_enable) and self.can_read(group, topic)

    def check_may_consume(self, group: str, topic: str) -> None:
        """Raise unless a group may consume a topic; checked before any message is delivered.

        Raises:
            PermissionDenied: the group may not consume at all (`consumeEnable`), or is forbidden to read that topic.
        """
        config = self._store.group_configs.get(group)
        if config is not None and not config.consume_enable:
            raise PermissionDenied(f"subscription group no permission, {group}")
        if not self.can_read(group, topic):
            raise PermissionDenied(f"the consumer group[{group}] is forbidden for topic[{topic}]")

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Allow or forbid a group to consume a topic."""
        check_group(group)
        check_topic(topic)
        bits = self._store.group_configs.forbidden.get(group, {}).get(topic, 0)
        self._store.group_configs.forbid(group, topic, bits & ~_READ if readable else bits | _READ)

    def _changed(self, change: Mapping[str, Any]) -> GroupConfig:
        group_name = change.get("groupName")
        if not isinstance(group_name, str):
            raise InvalidInput("groupName", "a text", group_name)
        name = check_group(group_name, "groupName")
        if name.startswith(SYSTEM_GROUP_PREFIX):
            raise InvalidInput("groupName", f"no name that begins with {SYSTEM_GROUP_PREFIX}", name)
        for field, (least, most) in _NUMBERS.items():
            value = change.get(field, least)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise InvalidInput(field, f"{least}..{most}", value)
        for field in _FLAGS:
            if not isinstance(change.get(field, True), bool):
                raise InvalidInput(field, "true or false", change[field])
        if not isinstance(change.get("attributes") or {}, dict):
            raise InvalidInput("attributes", "a JSON object", change["attributes"])
        known = self._store.group_configs.get(name)
        before = (known or GroupConfig(name)).to_json()
        known_fields = {field: value for field, value in change.items() if field in before}
        return GroupConfig.from_json(name, {**before, **known_fields, "groupName": name})
