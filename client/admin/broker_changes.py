"""Restart, add, drain, move and remove brokers: a part of `Admin`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.naming import check_group, check_sendable, replica_name
from raymq.client import arguments
from raymq.client.admin.election_requests import MAX_REPLICA
from raymq.client.admin.operation import Operation, StepLog
from raymq.client.client_base import ClientBase
from raymq.client.cluster_changes import ClusterChanges, DrainOptions, ReportStep
from raymq.client.results import BrokerChange

_Change = Callable[[ClusterChanges, ReportStep], Coroutine[Any, Any, BrokerChange]]


class BrokerChanges(ClientBase):
    """The calls of `Admin` that change the set of brokers.

    Each call starts a change, which runs in this process one step after the other, and returns an operation to wait
    for.

    The connection has to reach the cluster's Ray. If a change ended early, because its process was killed or `cancel`
    was called, call it again: it continues with the remaining steps.
    """

    def restart(
        self, broker: str | None = None, rolling: bool = True, *, dry_run: bool = False
    ) -> Operation[BrokerChange]:
        """Restart all brokers, or the replicas of one, one at a time, while clients continue.

        A master hands over to an in-sync replica first. The next process is restarted only when all replicas of the
        previous one's group are in sync again. A broker group of one replica is unavailable for a second or two, and
        clients wait for it.

        Args:
            broker: a group's name, or that of one replica: "broker-a", "broker-a.1" (its first one: "broker-a.0").
            rolling: has to be True; `cluster.stop` and `cluster.start` restart all brokers at once.
            dry_run: report the steps, and change nothing.

        Returns:
            the operation; its `wait` raises BrokerUnavailable where not all replicas of a group get in sync again.

        Raises:
            InvalidInput: an argument breaks its rule, or the connection does not reach Ray.
        """
        return self._change("rolling restart", _restart(broker, rolling, dry_run))

    async def arestart(self, broker: str | None = None, rolling: bool = True, *, dry_run: bool = False) -> BrokerChange:
        """`restart` for asyncio code; it returns when the restart is done."""
        return await self._achange(_restart(broker, rolling, dry_run))

    def add_broker(
        self,
        name: str | None = None,
        replicas: int | None = None,
        *,
        replica_of: str | None = None,
        host: str | None = None,
        topics: str | Iterable[str] = "all",
        dry_run: bool = False,
    ) -> Operation[BrokerChange]:
        """Add a broker group, or with `replica_of` one replica to a group.

        Adding a replica is done when the replica is in sync. A new group is empty. It has all consumer groups of the
        others, and the topics that `topics` selects. More queues may change the queue of a sharding key, so "all"
        leaves ordered topics out.

        Args:
            name: of the new group; None: the next letter. The name of a removed group may not be used again.
            replicas: of the new group; None: as many as the cluster was started with.
            replica_of: the group that gets one more replica.
            host: the name or the address of the machine of the (first) replica; None: the one with most room.
            topics: the topics that are created on the new group: "all", "none", or some by name.
            dry_run: report the steps, and change nothing.

        Returns:
            the operation; `brokers` of its result names the new ones.

        Raises:
            InvalidInput: an argument breaks its rule, or the connection does not reach Ray; by `wait` also where
                another change of the group is running, or a replica is added in a cluster whose groups have one
                replica.
        """
        return self._change("adding a broker", _add(name, replicas, replica_of, host, topics, dry_run))

    async def aadd_broker(
        self,
        name: str | None = None,
        replicas: int | None = None,
        *,
        replica_of: str | None = None,
        host: str | None = None,
        topics: str | Iterable[str] = "all",
        dry_run: bool = False,
    ) -> BrokerChange:
        """`add_broker` for asyncio code; it returns when the broker is added."""
        return await self._achange(_add(name, replicas, replica_of, host, topics, dry_run))

    def drain(
        self,
        broker: str,
        *,
        remove: bool = False,
        cancel: bool = False,
        lose: bool = False,
        without_groups: Iterable[str] = (),
        dry_run: bool = False,
    ) -> Operation[BrokerChange]:
        """Stop new messages to a broker group, and wait until its messages are consumed.

        Producers send to the other groups at once. Consumers consume the remaining messages; delayed messages, timers,
        in-flight messages of groups that pop, and staged writes stay until they are due. The group stays drained, also
        after restarts, until it is removed or the drain is cancelled.

        Args:
            remove: end the group's processes when it is empty, and delete it from the records of all other servers. Its
                directories stay, see `kept`.
            cancel: cancel the drain: the group takes messages again.
            lose: drain also if some topics exist on this group only, so that no client can send to them any more; with
                `remove` also if these topics, dead letters, and the progress of streams and series of writes are
                deleted with it.
            without_groups: consumer groups whose messages are not waited for.
            dry_run: report what is left and the next step, and change nothing.

        Returns:
            the operation; while it waits, its `progress` says what is left.

        Raises:
            InvalidInput: an argument breaks its rule, or the connection does not reach Ray; by `wait` also where no
                other group takes messages or has its topics, or data that never expires would be lost.
        """
        return self._change("draining a broker", _drain(broker, remove, cancel, lose, without_groups, dry_run))

    async def adrain(
        self,
        broker: str,
        *,
        remove: bool = False,
        cancel: bool = False,
        lose: bool = False,
        without_groups: Iterable[str] = (),
        dry_run: bool = False,
    ) -> BrokerChange:
        """`drain` for asyncio code; it returns when the drain is done."""
        return await self._achange(_drain(broker, remove, cancel, lose, without_groups, dry_run))

    def move(self, broker: str, replica: int, host: str, *, dry_run: bool = False) -> Operation[BrokerChange]:
        """Move a replica to another machine.

        A new replica is started there and copies everything, and then the former one is removed. A master hands over to
        the new replica first. The new replica has another number; the directory of the former one stays where it is,
        and `kept` of the result names it.

        Args:
            replica: counted from 0, as in `cluster_info()`.
            host: the name or the address of the machine to move to.
            dry_run: report the steps, and change nothing.

        Raises:
            InvalidInput: as `add_broker`; or the replica is on that machine already.
        """
        return self._change("moving a replica", _move(broker, replica, host, dry_run))

    async def amove(self, broker: str, replica: int, host: str, *, dry_run: bool = False) -> BrokerChange:
        """`move` for asyncio code; it returns when the move is done."""
        return await self._achange(_move(broker, replica, host, dry_run))

    def remove_broker(self, broker: str, *, dry_run: bool = False) -> Operation[BrokerChange]:
        """Remove a replica such as "broker-a.1", or a whole broker group such as "broker-a".

        The first replica of a group is "broker-a.0". A master hands over first. A replica whose machine is permanently
        gone, and one that is still being added, can be removed too. A group is drained first, as by `drain(broker,
        remove=True)`. Directories stay.

        Raises:
            InvalidInput: as `add_broker`; or too few replicas would be in sync without it.
        """
        return self._change("removing a broker", _remove(broker, dry_run))

    async def aremove_broker(self, broker: str, *, dry_run: bool = False) -> BrokerChange:
        """`remove_broker` for asyncio code; it returns when the broker is removed."""
        return await self._achange(_remove(broker, dry_run))

    def _change(self, what: str, change: _Change) -> Operation[BrokerChange]:
        self._check_open()
        progress = StepLog()
        doing = change(self._mq.cluster_changes(), progress)
        return Operation(what, self._mq.submit(doing), _in_words, progress)

    async def _achange(self, change: _Change) -> BrokerChange:
        return await self._arun(change(self._mq.cluster_changes(), StepLog()))


def _restart(broker: str | None, rolling: object, dry_run: bool) -> _Change:
    if broker is not None:
        arguments.text("broker", broker)
    if rolling is not True:
        raise InvalidInput("rolling", "True; cluster.stop and cluster.start restart all at once", rolling)
    return lambda changes, report: changes.restart(broker, report, dry_run=dry_run)


def _add(
    name: str | None,
    replicas: int | None,
    replica_of: str | None,
    host: str | None,
    topics: str | Iterable[str],
    dry_run: bool,
) -> _Change:
    for field, value in (("name", name), ("replica_of", replica_of), ("host", host)):
        if value is not None:
            arguments.text(field, value)
    if replicas is not None:
        arguments.whole("replicas", replicas, 1, MAX_REPLICA + 1)
    if isinstance(topics, str) and topics not in ("all", "none"):
        raise InvalidInput("topics", '"all", "none" or a list of names', topics)
    chosen = {"all": None, "none": ()}[topics] if isinstance(topics, str) else tuple(map(check_sendable, topics))
    if replica_of is None:
        return lambda changes, report: changes.add_group(name, replicas, host, chosen, report, dry_run=dry_run)
    if name is not None or replicas is not None or chosen is not None:
        raise InvalidInput("replica_of", "without name, replicas and topics, which only a new group takes", replica_of)
    group = replica_of
    return lambda changes, report: changes.add_replica(group, host, report, dry_run=dry_run)


def _drain(
    broker: str, remove: bool, cancel: bool, lose: bool, without_groups: Iterable[str], dry_run: bool
) -> _Change:
    arguments.text("broker", broker)
    if cancel and (remove or lose):
        raise InvalidInput("cancel", "without remove and lose", cancel)
    options = DrainOptions(remove, lose, frozenset(map(check_group, without_groups)))
    return lambda changes, report: changes.drain(broker, options, report, cancel=cancel, dry_run=dry_run)


def _move(broker: str, replica: int, host: str, dry_run: bool) -> _Change:
    arguments.text("broker", broker)
    arguments.whole("replica", replica, 0, MAX_REPLICA)
    arguments.text("host", host)
    return lambda changes, report: changes.move(broker, replica, host, report, dry_run=dry_run)


def _remove(broker: str, dry_run: bool) -> _Change:
    group, dot, number = arguments.text("broker", broker).partition(".")
    if not dot:
        return _drain(broker, remove=True, cancel=False, lose=False, without_groups=(), dry_run=dry_run)
    if not number.isdecimal() or not 0 <= int(number) <= MAX_REPLICA:
        raise InvalidInput("broker", 'the name of a replica, as "broker-a.1" or "broker-a.0"', broker)
    return lambda changes, report: changes.remove_replica(replica_name(group, int(number)), report, dry_run=dry_run)


def _in_words(change: BrokerChange) -> str:
    return f"{', '.join(change.brokers)}: {change.steps[-1] if change.steps else 'nothing had to be done'}"
