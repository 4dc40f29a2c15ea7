"""Explain what happens in the cluster: a part of `Admin`."""

from __future__ import annotations

from raymq.client.admin import group_facts
from raymq.client.admin.broker_changes import BrokerChanges
from raymq.client.admin.group_diagnosis import HANG_SECONDS, GroupDiagnosis
from raymq.client.results import GroupMemberInfo


class Inspection(BrokerChanges):
    """The calls of `Admin` that gather facts from several places. They change nothing."""

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
