"""The part of `Admin` that changes which brokers there are."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.naming import check_group, check_sendable, replica_name
from raymq.client import arguments
from raymq.client.admin.elections import MOST_REPLICA
from raymq.client.admin.operation import Operation, ToldSteps
from raymq.client.client_base import ClientBase
from raymq.client.cluster_changes import ClusterChanges, DrainWish, Told
from raymq.client.results import BrokerChange

_Change = Callable[[ClusterChanges, Told], Coroutine[Any, Any, BrokerChange]]


class BrokerChanges(ClientBase):
    """Each call begins a change that goes on in this process, one step after the other, and can be waited for.

    The connection has to reach the cluster's Ray. A change that ended before it was done, because its process was
    killed or `cancel` was called, is asked for again: it goes on with what is left.
    """

    def restart(
        self, broker: str | None = None, rolling: bool = True, *, dry_run: bool = False
    ) -> Operation[BrokerChange]:
        """Restart all brokers, or the replicas of one, one process after the other, while clients go on.

        A master hands over to a replica in sync first, and nobody is restarted before the group of the one before has
        all its replicas in sync again. A broker of one copy is away for a second or two, in which clients wait for it.

        Args:
            broker: a group's name, or that of one replica: "broker-a", "broker-a.1" (its first one: "broker-a.0").
            rolling: all at once is what `cluster.stop` and `cluster.start` do.
            dry_run: tell the steps, and change nothing.

        Returns:
            the operation; its `wait` raises BrokerUnavailable where a group does not become whole.

        Raises:
            InvalidInput: an argument breaks its rule, or the connection does not reach Ray.
        """
        return self._change("rolling restart", _restart(broker, rolling, dry_run))

    async def arestart(self, broker: str | None = None, rolling: bool = True, *, dry_run: bool = False) -> BrokerChange:
        """`restart` for asyncio code: returns once it is done."""
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
        """Add a broker group, or with `replica_of` one replica to a group; it is done when that is in sync.

        A new group is empty. It has all consumer groups of the others, and the topics that are asked for: with more
        queues keys with a sharding key may change their queue, so that "all" leaves ordered topics out.

        Args:
            name: of the new group; None: the next letter. One that went may not come again.
            replicas: of the new group; None: as many as the cluster was started with.
            replica_of: the group that is to get one replica more.
            host: the name or the address of the machine of the (first) replica; None: the one with most room.
            topics: those that are made on the new group: "all", "none", or some by name.
            dry_run: tell the steps, and change nothing.

        Returns:
            the operation; `brokers` of its result names the new ones.

        Raises:
            InvalidInput: an argument breaks its rule, or the connection does not reach Ray; by `wait` also where
                something else is under way in the group, or a replica is asked for where groups have one copy.
        """
        return self._change("a broker more", _add(name, replicas, replica_of, host, topics, dry_run))

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
        """`add_broker` for asyncio code: returns once it is done."""
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
        """Have a broker group take no new messages, and wait until nothing is left there that somebody waits for.

        Producers go to the others at once. Consumers empty it; delayed messages, timers, what is lent to groups that
        pop, and staged writes wait there for their time. It stays so, over restarts, until it is removed or cancelled.

        Args:
            remove: when it is empty its processes end, and all others forget it. Its directories stay, see `kept`.
            cancel: take it back: it takes messages again.
            lose: though nobody can send to topics any more that only this group has; with `remove` also though they,
                dead letters, and the progress of streams and series of writes go with it.
            without_groups: consumer groups whose messages are not waited for.
            dry_run: tell what is left and what is next, and change nothing.

        Returns:
            the operation; while it waits its `progress` says what is left.

        Raises:
            InvalidInput: an argument breaks its rule, or the connection does not reach Ray; by `wait` also where no
                other group takes messages or has its topics, or what stays for ever would be lost.
        """
        return self._change("a drain", _drain(broker, remove, cancel, lose, without_groups, dry_run))

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
        """`drain` for asyncio code: returns once it is done."""
        return await self._achange(_drain(broker, remove, cancel, lose, without_groups, dry_run))

    def move(self, broker: str, replica: int, host: str, *, dry_run: bool = False) -> Operation[BrokerChange]:
        """Have a replica on another machine: another one comes there, takes everything, and this one goes.

        A master hands over to the new one first. The new one has a number of its own; the directory of the former one
        stays where it is, and `kept` of the result names it.

        Args:
            replica: counted from 0, as in `cluster_info()`.
            host: the name or the address of the machine to move to.
            dry_run: tell the steps, and change nothing.

        Raises:
            InvalidInput: as `add_broker`; or it is on that machine already.
        """
        return self._change("a replica moves", _move(broker, replica, host, dry_run))

    async def amove(self, broker: str, replica: int, host: str, *, dry_run: bool = False) -> BrokerChange:
        """`move` for asyncio code: returns once it is done."""
        return await self._achange(_move(broker, replica, host, dry_run))

    def remove_broker(self, broker: str, *, dry_run: bool = False) -> Operation[BrokerChange]:
        """Take a replica away: "broker-a.1" (the first one of a group: "broker-a.0"), or a group: "broker-a".

        A master hands over first. Also one whose machine is gone for good, and one that is about to be added. A group
        is drained first, as `drain(broker, remove=True)`. Directories stay.

        Raises:
            InvalidInput: as `add_broker`; or too few replicas would be in sync without it.
        """
        return self._change("a broker goes", _remove(broker, dry_run))

    async def aremove_broker(self, broker: str, *, dry_run: bool = False) -> BrokerChange:
        """`remove_broker` for asyncio code: returns once it is done."""
        return await self._achange(_remove(broker, dry_run))

    def _change(self, what: str, change: _Change) -> Operation[BrokerChange]:
        self._check_open()
        progress = ToldSteps()
        doing = change(self._mq.cluster_changes(), progress)
        return Operation(what, self._mq.submit(doing), _in_words, progress)

    async def _achange(self, change: _Change) -> BrokerChange:
        return await self._arun(change(self._mq.cluster_changes(), ToldSteps()))


def _restart(broker: str | None, rolling: object, dry_run: bool) -> _Change:
    if broker is not None:
        arguments.text("broker", broker)
    if rolling is not True:
        raise InvalidInput("rolling", "True; cluster.stop and cluster.start restart all at once", rolling)
    return lambda changes, told: changes.restart(broker, told, dry_run=dry_run)


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
        arguments.whole("replicas", replicas, 1, MOST_REPLICA + 1)
    if isinstance(topics, str) and topics not in ("all", "none"):
        raise InvalidInput("topics", '"all", "none" or a list of names', topics)
    wanted = {"all": None, "none": ()}[topics] if isinstance(topics, str) else tuple(map(check_sendable, topics))
    if replica_of is None:
        return lambda changes, told: changes.add_group(name, replicas, host, wanted, told, dry_run=dry_run)
    if name is not None or replicas is not None or wanted is not None:
        raise InvalidInput("replica_of", "without name, replicas and topics, which are a new group's", replica_of)
    group = replica_of
    return lambda changes, told: changes.add_replica(group, host, told, dry_run=dry_run)


def _drain(
    broker: str, remove: bool, cancel: bool, lose: bool, without_groups: Iterable[str], dry_run: bool
) -> _Change:
    arguments.text("broker", broker)
    if cancel and (remove or lose):
        raise InvalidInput("cancel", "without remove and lose", cancel)
    wanted = DrainWish(remove, lose, frozenset(map(check_group, without_groups)))
    return lambda changes, told: changes.drain(broker, wanted, told, cancel=cancel, dry_run=dry_run)


def _move(broker: str, replica: int, host: str, dry_run: bool) -> _Change:
    arguments.text("broker", broker)
    arguments.whole("replica", replica, 0, MOST_REPLICA)
    arguments.text("host", host)
    return lambda changes, told: changes.move(broker, replica, host, told, dry_run=dry_run)


def _remove(broker: str, dry_run: bool) -> _Change:
    group, dot, number = arguments.text("broker", broker).partition(".")
    if not dot:
        return _drain(broker, remove=True, cancel=False, lose=False, without_groups=(), dry_run=dry_run)
    if not number.isdecimal() or not 0 <= int(number) <= MOST_REPLICA:
        raise InvalidInput("broker", 'the name of a replica, as "broker-a.1" or "broker-a.0"', broker)
    return lambda changes, told: changes.remove_replica(replica_name(group, int(number)), told, dry_run=dry_run)


def _in_words(change: BrokerChange) -> str:
    return f"{', '.join(change.brokers)}: {change.steps[-1] if change.steps else 'nothing was to be done'}"
