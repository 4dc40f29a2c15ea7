"""Delete a consumer group from one broker, or its progress in one topic."""

from __future__ import annotations

import contextlib
from typing import Final

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.errors import GroupNotFound, InvalidInput, QueueNotFound
from raymq.actors.naming import check_group, check_topic, dlq_topic, retry_topic
from raymq.actors.protocol import IDLE_SECONDS, GroupContent
from raymq.storage.cooperative_steps import Steps

_MAX_MEMBERS: Final = 100


class GroupRemover:
    """Deletes consumer groups on one broker.

    Used on the broker's event loop; it has no state of its own.
    """

    def __init__(self, core: BrokerCore, groups: ClientRegistry) -> None:
        self._core = core
        self._groups = groups

    def content(self, group: str) -> Steps[GroupContent]:
        """Return what this broker has of a group, in steps."""
        retries, letters = retry_topic(check_group(group)), dlq_topic(group)
        waiting = yield from self._core.schedule.count_steps(retries)
        dead_letters = yield from self._core.dead_letters.count_steps(letters)
        offsets = self._core.store.consumer_offsets
        topics = offsets.topics_of(group)
        for queue_id in self._core.store.queues(retries) if retries in self._core.topics else ():
            with contextlib.suppress(QueueNotFound):
                low = self._core.store.min_offset(retries, queue_id)
                end = self._core.store.max_offset(retries, queue_id, written=True)
                waiting += max(0, end - max(low, offsets.get(group, retries, queue_id) or 0))
        lent = self._core.store.in_flight.queues.items()
        return GroupContent(
            exists=group in self._core.group_settings or bool(topics) or retries in self._core.topics,
            members=[client.client_id for client in self._groups.clients(group)[:_MAX_MEMBERS]],
            since_commit=self._core.offsets.since_commit(group),
            offsets=sum(len(offsets.of(group, topic)) for topic in topics),
            in_flight=sum(len(each.deliveries) for (name, _, _), each in lent if name == group),
            retries=waiting,
            dead_letters=dead_letters,
        )

    def delete(self, group: str, *, dead_letters: bool) -> None:
        """Delete a group with its offsets, deliveries and retry topic.

        Its dead letters are deleted if requested. The settings are deleted last: if a crash leaves a part, the next
        call finds and deletes it.

        Raises:
            InvalidInput: it has members, or has committed in the last minute. Nothing changed.
            StoreFull, StoreFailed: part of it may be left.
        """
        check_group(group)
        members, since = self._groups.clients(group), self._core.offsets.since_commit(group)
        if members or (since is not None and since < IDLE_SECONDS):
            used = f"{len(members)} members" if members else f"a commit {since:.0f} s ago"
            raise InvalidInput("group", f"no members, and no commit of the last {IDLE_SECONDS:.0f} s", used)
        for topic in (retry_topic(group), *((dlq_topic(group),) if dead_letters else ())):
            self._core.topics.delete(topic)
        self._core.pop.forget_group(group)
        self._core.offsets.forget_group(group)
        self._core.group_settings.permit_all(group)
        self._core.group_settings.delete(group, with_offsets=True)

    def forget_topic(self, group: str, topic: str) -> int:
        """Forget a group's offsets and deliveries in a topic.

        Return in how many queues it had committed.

        Raises:
            GroupNotFound: there is no such group. InvalidInput: a member subscribes to the topic, or it is the retry
                topic.
        """
        if check_topic(topic) == retry_topic(check_group(group)):
            raise InvalidInput("topic", "not the group's retry topic", topic, remedy="delete the group instead")
        self._core.group_settings.get(group)
        with contextlib.suppress(GroupNotFound):  # it has no members
            if topic in self._groups.consumer_group(group).subscriptions:
                raise InvalidInput("topic", f"one that no member of {group} subscribes to", topic)
        self._core.pop.forget_group(group, topic)
        return self._core.offsets.forget_topic(group, topic)
