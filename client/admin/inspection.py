"""Explain what happens in the cluster: a part of `Admin`."""

from __future__ import annotations

from raymq.actors.protocol import RecallStatus
from raymq.client.admin import cluster_health, delayed_requests, group_facts, message_trace, topic_figures
from raymq.client.admin.broker_changes import BrokerChanges
from raymq.client.admin.cluster_health import ClusterHealth
from raymq.client.admin.delayed_requests import DelayedMessage
from raymq.client.admin.group_diagnosis import HANG_SECONDS, GroupDiagnosis
from raymq.client.admin.message_trace import MessageTrace
from raymq.client.results import BrokerRoute, FoundMessages, GroupMemberInfo, TopicRates


class Inspection(BrokerChanges):
    """The calls of `Admin` that gather facts from several places.

    They change nothing but for `recall`.
    """

    def health(self, *, ready: bool = False, brokers: int | None = None) -> ClusterHealth:
        """Return whether every process of the cluster answers, or whether clients can work.

        Args:
            ready: check that every broker group has a serving master that all answering name servers know, instead of
                every process.
            brokers: with `ready`, how many broker groups there have to be; None: those that are registered.
        """
        return self._run(cluster_health.health(self._mq, ready=ready, brokers=brokers))

    async def ahealth(self, *, ready: bool = False, brokers: int | None = None) -> ClusterHealth:
        """`health` for asyncio code."""
        return await self._arun(cluster_health.health(self._mq, ready=ready, brokers=brokers))

    def explain_group(self, group: str, *, hang_after: float = HANG_SECONDS) -> GroupDiagnosis:
        """Return why a consumer group does not move, as one sentence with evidence.

        The call takes about two seconds: it compares the group's offsets at two moments. It asks the brokers and the
        connected members, and says so where something is not known.

        Args:
            hang_after: a listener call that runs for longer, in seconds, counts as hanging.

        Raises:
            GroupNotFound: no broker has the group.
            BrokerUnavailable: no broker answers that has the group.
        """
        return self._run(group_facts.explain(self._mq, group, hang_after))

    async def aexplain_group(self, group: str, *, hang_after: float = HANG_SECONDS) -> GroupDiagnosis:
        """`explain_group` for asyncio code."""
        return await self._arun(group_facts.explain(self._mq, group, hang_after))

    def group_members(self, group: str) -> list[GroupMemberInfo]:
        """Return the connected members of a consumer group, sorted by client id.

        Pull consumers and Spark are no members.

        Raises:
            GroupNotFound: no broker has the group.
        """
        return self._run(group_facts.members(self._mq, group))

    async def agroup_members(self, group: str) -> list[GroupMemberInfo]:
        """`group_members` for asyncio code."""
        return await self._arun(group_facts.members(self._mq, group))

    def topic_rates(self, topic: str) -> list[TopicRates]:
        """Return a topic's rates on each broker: stored, and received by each group.

        Raises:
            TopicNotFound: the topic does not exist.
        """
        return self._run(topic_figures.rates(self._mq, topic))

    async def atopic_rates(self, topic: str) -> list[TopicRates]:
        """`topic_rates` for asyncio code."""
        return await self._arun(topic_figures.rates(self._mq, topic))

    def topic_route(self, topic: str) -> list[BrokerRoute]:
        """Return the brokers that have a topic, also those that are away for a while.

        Raises:
            TopicNotFound: the topic does not exist.
        """
        return self._run(topic_figures.route(self._mq, topic))

    async def atopic_route(self, topic: str) -> list[BrokerRoute]:
        """`topic_route` for asyncio code."""
        return await self._arun(topic_figures.route(self._mq, topic))

    def trace_message(self, message: str, *, topic: str | None = None) -> MessageTrace:
        """Return where a message is stored, and what its groups made of it.

        Retries, dead letters and redrives are found by its unique key. What has expired is not found.

        Args:
            message: a message id, or a unique key.
            topic: where a unique key is searched; None: in all topics.

        Raises:
            MessageNotFound, MessageExpired: there is no such message.
            BrokerUnavailable: it was not found, and a broker does not answer. Where it was found, `.not_asked` of the
                result names such brokers.
        """
        return self._run(message_trace.trace(self._mq, message, topic))

    async def atrace_message(self, message: str, *, topic: str | None = None) -> MessageTrace:
        """`trace_message` for asyncio code."""
        return await self._arun(message_trace.trace(self._mq, message, topic))

    def delayed_messages(self, topic: str | None = None, limit: int = 1000) -> FoundMessages[DelayedMessage]:
        """Return at most `limit` messages that wait for their time, the next due first.

        Retries of groups, which wait as well, are included.

        Args:
            topic: only the messages that will be delivered to this topic ("%RETRY%" and a group: its retries).

        Raises:
            BrokerUnavailable: none was found, and a broker does not answer. Where some were found, `.not_asked` of the
                result names such brokers.

        Returns:
            a list whose `.truncated` says whether there are more.
        """
        return self._run(delayed_requests.first(self._mq, topic, limit))

    async def adelayed_messages(self, topic: str | None = None, limit: int = 1000) -> FoundMessages[DelayedMessage]:
        """`delayed_messages` for asyncio code."""
        return await self._arun(delayed_requests.first(self._mq, topic, limit))

    def recall(self, message: str) -> RecallStatus:
        """Withdraw a message that waits for its `deliver_at`, as `Producer.recall` does.

        Args:
            message: a recall handle, or the message id or unique key of a message of `delayed_messages`.

        Raises:
            MessageNotFound: no message waits that has this message id or unique key.
            NotRecallable: it waits in a delay level.
            BrokerUnavailable: its broker does not answer.
        """
        return self._run(delayed_requests.recall(self._mq, message))

    async def arecall(self, message: str) -> RecallStatus:
        """`recall` for asyncio code."""
        return await self._arun(delayed_requests.recall(self._mq, message))
