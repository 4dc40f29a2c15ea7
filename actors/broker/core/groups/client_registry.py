"""Track the clients of a broker, their groups and their subscriptions. No I/O.

A client is identified by its id, which one process may use for many groups and over several connections. A client and
all its memberships are removed `SESSION_GRACE_SECONDS` after its last connection closed, unless it has reconnected. A
membership that no heartbeat renews is removed after `CHANNEL_EXPIRY_SECONDS` (RocketMQ's channel expiry).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from raymq.actors.errors import GroupNotFound, InvalidInput, ServerBusy, SubscriptionMismatch
from raymq.actors.filter.tag_expression import Subscription
from raymq.actors.naming import retry_topic
from raymq.actors.protocol import SESSION_GRACE_SECONDS

CHANNEL_EXPIRY_SECONDS = 120.0
#: Limits of what clients may invent: client ids of one connection, and of all connections;
MAX_IDS_PER_CONNECTION = 10_000
MAX_CLIENTS = 100_000
MAX_ID_CHARACTERS = 1_024
#: memberships of one connection, and of all; one with many subscriptions counts as several, of this many bytes each.
MAX_MEMBERSHIPS_PER_CONNECTION = 16_384
MAX_MEMBERSHIPS = 200_000
BYTES_PER_MEMBERSHIP = 256
#: RocketMQ's words, such as CONSUME_PASSIVELY.
_WORD_CHARACTERS = 64
_LANGUAGE_CHARACTERS = 32

#: (topic, queue id)
Queue = tuple[str, int]


@dataclass(slots=True, eq=False)
class ConnectedClient:
    """One client id.

    `language` and `version` are those of its newest heartbeat; connections are newest last.
    """

    client_id: str
    language: str = "OTHER"
    version: int = 0
    connections: list[object] = field(default_factory=list)
    orphaned_at: float | None = None
    #: The total weight of its memberships.
    weight: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """The data of one consumer in a heartbeat; the words are RocketMQ's.

    `subscriptions` is None if they are the same as before.
    """

    group: str
    subscriptions: Mapping[str, Subscription] | None
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    #: RayMQ's own: those of its topics that did not exist at its last check.
    waits_for: frozenset[str] = frozenset()
    #: RayMQ's own: the version of its subscriptions, of which the highest in the group counts; None if not sent.
    version: int | None = None


@dataclass(slots=True, eq=False)
class FetchPosition:
    """The position of a member in a queue: it has received the messages before `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class FetchingMember:
    """The member that fetched a queue last, and its position, which moves with its fetch."""

    client_id: str
    position: FetchPosition


@dataclass(slots=True)
class GroupMember:
    """One client in one group."""

    client: ConnectedClient
    last_seen: float
    #: The consume type and the message model.
    way: tuple[str, str] = ("", "")
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)
    waits_for: frozenset[str] = frozenset()
    version: int | None = None
    #: How many memberships it counts as.
    weight: int = 1


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group with members.

    `latest` is from the newest heartbeat; its subscriptions apply to pulls that name none.
    """

    latest: ConsumerData
    members: dict[str, GroupMember] = field(default_factory=dict)
    #: The member that fetched each queue last.
    owners: dict[Queue, FetchingMember] = field(default_factory=dict)
    #: The highest version of the members' subscriptions; None if no member has sent one.
    in_force: int | None = None
    #: How many members have each version.
    _versions: Counter[int] = field(default_factory=Counter)

    def is_superseded(self, client_id: str) -> bool:
        """Return True if a member's subscription was replaced by one of a higher version."""
        member = self.members.get(client_id)
        return member is not None and _is_below(member.version, self.in_force)

    def count_version(self, version: int | None, members: int) -> None:
        """Add `members` members of a version, or remove them if negative.

        Members below the highest version own no queue.
        """
        if version is None:
            return
        self._versions[version] += members
        if not self._versions[version]:
            del self._versions[version]
        before, self.in_force = self.in_force, max(self._versions, default=None)
        if self.in_force != before:
            self.owners = {
                queue: owner for queue, owner in self.owners.items() if not self.is_superseded(owner.client_id)
            }

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """Return, by topic, the subscriptions that a member sent last."""
        return self.latest.subscriptions or {}

    @property
    def waits_for(self) -> set[str]:
        """Return the subscribed topics that did not exist at the members' last check."""
        return {topic for member in self.members.values() for topic in member.waits_for}


@dataclass(frozen=True, slots=True)
class ExpiredMembers:
    """The result of a sweep: consumer groups that lost members, and forgotten clients."""

    groups: frozenset[str]
    client_ids: frozenset[str]


@dataclass(slots=True)
class ClientRegistry:
    """All clients of a broker.

    `clock` is in seconds and is never set back or forward. Connections are any hashable objects.
    """

    clock: Callable[[], float]
    _clients: dict[str, ConnectedClient] = field(default_factory=dict)
    _by_connection: dict[object, set[str]] = field(default_factory=dict)
    #: The total weight of the memberships of a connection's clients.
    _held: dict[object, int] = field(default_factory=dict)
    _consumers: dict[str, ConsumerGroup] = field(default_factory=dict)
    _producers: dict[str, dict[str, GroupMember]] = field(default_factory=dict)
    #: The total weight of all memberships.
    _weight: int = 0

    # -- what clients do -----------------------------------------------------------------------------------------

    def register_client(self, client_id: str, connection: object, language: str = "OTHER", version: int = 0) -> bool:
        """Register a client or renew it; the first call for every heartbeat.

        Returns:
            Whether the connection is new here: the caller then has to ensure that `connection_closed` is called.

        Raises:
            InvalidInput: the id is too long, or the connection has used too many ids.
            ServerBusy: the limit of clients is reached.
        """
        if len(client_id) > MAX_ID_CHARACTERS:
            raise InvalidInput("clientID", f"at most {MAX_ID_CHARACTERS} characters", len(client_id))
        ids = self._by_connection.get(connection, set())
        if client_id not in ids and len(ids) >= MAX_IDS_PER_CONNECTION:
            raise InvalidInput("clientID", f"at most {MAX_IDS_PER_CONNECTION} client ids per connection", client_id)
        client = self._clients.get(client_id)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                raise ServerBusy(f"{MAX_CLIENTS} clients are connected, which is the limit")
            client = self._clients[client_id] = ConnectedClient(client_id)
        client.language, client.version, client.orphaned_at = language[:_LANGUAGE_CHARACTERS], version, None
        if connection not in client.connections:
            client.connections.append(connection)
            self._held[connection] = self._held.get(connection, 0) + client.weight
        new = connection not in self._by_connection
        self._by_connection.setdefault(connection, ids).add(client_id)
        return new

    def register_consumer(self, client_id: str, consumer: ConsumerData, *, strict: bool = False) -> bool:
        """Make a registered client a member of a consumer group, or renew it.

        Args:
            strict: refuse data that differ from those of other members (RayMQ's clients); otherwise the last member
                wins.

        Returns:
            Whether the other members have to be notified: the member is new, or its subscriptions or their version
            changed.

        Raises:
            SubscriptionMismatch: `strict`, and another connected member has other subscriptions or consumes in another
                way: a member that pops takes messages of queues that others own, and a broadcasting member owns none.
                Members of lower versions do not count. Or its own version is below the one in force.
            InvalidInput: words that are not RocketMQ's, or the connection's clients exceed the limit of memberships or
                subscriptions.
            ServerBusy: the limit of memberships is reached.
        """
        _check_words(consumer)
        group = self._consumers.get(consumer.group)
        known = group.members.get(client_id) if group else None
        subscriptions = consumer.subscriptions
        version = consumer.version
        changed = known is None or (subscriptions is not None and _plain(known.subscriptions) != _plain(subscriptions))
        changed = changed or (known is not None and known.version != version)
        way = (consumer.consume_type, consumer.message_model)
        if group is not None and _is_below(version, group.in_force):
            raise _superseded(consumer.group, group, client_id, version)
        if strict and changed and group is not None and subscriptions is not None:
            others = [each for each in group.members.values() if not _is_below(each.version, version)]
            _check_same(client_id, subscriptions, way, consumer.group, others)
        weight = known.weight if known is not None and subscriptions is None else _weight_of(subscriptions or {})
        client = self._clients[client_id]
        self._weigh(client, weight - (0 if known is None else known.weight))
        if group is None:
            group = self._consumers[consumer.group] = ConsumerGroup(consumer)
        member = group.members.setdefault(client_id, GroupMember(client, 0.0))
        member.last_seen = self.clock()
        member.way = way
        if member.version != version:
            group.count_version(member.version, -1)
            member.version = version
            group.count_version(version, 1)
        member.weight = weight
        if subscriptions is not None:
            if (
                member.subscriptions == subscriptions
            ):  # with the versions, as a pull with a newer version waits for that one
                consumer = replace(consumer, subscriptions=member.subscriptions)
            elif group.subscriptions == subscriptions:  # members have equal subscriptions: keep one object for all
                consumer = replace(consumer, subscriptions=group.subscriptions)
            member.subscriptions = consumer.subscriptions or {}
            member.waits_for = consumer.waits_for & subscriptions.keys()
            group.latest = consumer
        return changed

    def record_fetch(self, group: str, client_id: str, positions: Mapping[Queue, FetchPosition]) -> None:
        """Record that a member fetches these queues, and so owns them."""
        known = self._consumers.get(group)
        if known is not None and client_id in known.members and not known.is_superseded(client_id):
            known.owners |= {queue: FetchingMember(client_id, position) for queue, position in positions.items()}

    def record_connection_fetch(self, group: str, connection: object, queue: Queue, position: FetchPosition) -> None:
        """Do `record_fetch` for a client that does not send its id with each request."""
        for client_id in self._by_connection.get(connection, ()):
            self.record_fetch(group, client_id, {queue: position})

    def register_producer(self, client_id: str, group: str) -> None:
        """Make a client a member of a producer group.

        Raise InvalidInput or ServerBusy as `register_consumer`.
        """
        known = self._producers.get(group, {}).get(client_id)
        if known is None:
            client, weight = self._clients[client_id], 1 + _bytes_of(group) // BYTES_PER_MEMBERSHIP
            self._weigh(client, weight)
            known = GroupMember(client, 0.0, weight=weight)
            self._producers.setdefault(group, {})[client_id] = known
        known.last_seen = self.clock()

    def _weigh(self, client: ConnectedClient, more: int) -> None:
        """Change the weight of a client's memberships by `more`, which may be negative."""
        if more > 0:
            most = MAX_MEMBERSHIPS_PER_CONNECTION
            if any(self._held.get(connection, 0) + more > most for connection in client.connections):
                limit = f"at most {most} memberships of a connection, {BYTES_PER_MEMBERSHIP} bytes each"
                raise InvalidInput(
                    "consumerDataSet", limit, more, remedy="subscribe to fewer topics, or use more connections"
                )
            if self._weight + more > MAX_MEMBERSHIPS:
                raise ServerBusy(
                    f"the limit of {MAX_MEMBERSHIPS} memberships is reached; a large subscription counts as several"
                )
        self._weight += more
        client.weight += more
        for connection in client.connections:
            self._held[connection] = self._held.get(connection, 0) + more

    def unregister_consumer(self, client_id: str, group: str) -> bool:
        """Remove a member that leaves its group.

        Return True if it was a member: the others have to be notified.
        """
        return self._leave(group, (client_id,))

    def _leave(self, group: str, client_ids: Iterable[str]) -> bool:
        """Remove members from a group; return True if any of them was a member.

        All are removed together, so that the queues are searched once.
        """
        known = self._consumers.get(group)
        if known is None:
            return False
        departed = {client_id for client_id in client_ids if client_id in known.members}
        if not departed:
            return False
        for client_id in departed:
            member = known.members.pop(client_id)
            self._weigh(member.client, -member.weight)
            known.count_version(member.version, -1)
        known.owners = {queue: owner for queue, owner in known.owners.items() if owner.client_id not in departed}
        if not known.members:
            del self._consumers[group]
        return True

    def unregister_producer(self, client_id: str, group: str) -> None:
        """Remove a producer from its group."""
        members = self._producers.get(group, {})
        member = members.pop(client_id, None)
        if member is not None:
            self._weigh(member.client, -member.weight)
        if not members:
            self._producers.pop(group, None)

    def connection_closed(self, connection: object) -> None:
        """Remove a closed connection; clients without another one begin their grace time."""
        self._held.pop(connection, None)
        for client_id in self._by_connection.pop(connection, ()):
            client = self._clients.get(client_id)
            if client is not None:
                client.connections.remove(connection)
                if not client.connections:
                    client.orphaned_at = self.clock()

    def expire(self) -> ExpiredMembers:
        """Remove clients and memberships that have expired."""
        now = self.clock()
        orphans = {
            client.client_id
            for client in self._clients.values()
            if client.orphaned_at is not None and now - client.orphaned_at >= SESSION_GRACE_SECONDS
        }
        for client_id in orphans:
            del self._clients[client_id]

        def over(client_id: str, member: GroupMember) -> bool:
            return client_id in orphans or now - member.last_seen >= CHANNEL_EXPIRY_SECONDS

        changed = set()
        for name, group in list(self._consumers.items()):
            if self._leave(name, [c for c, member in group.members.items() if over(c, member)]):
                changed.add(name)
        for name, members in list(self._producers.items()):
            for client_id in [c for c, member in members.items() if over(c, member)]:
                self.unregister_producer(client_id, name)
        return ExpiredMembers(frozenset(changed), frozenset(orphans))

    # -- what others ask -----------------------------------------------------------------------------------------

    def members(self, group: str) -> list[str]:
        """Return the sorted client ids of a consumer group, without superseded members.

        Raise GroupNotFound if it has no members.
        """
        found = self.consumer_group(group)
        return sorted(client_id for client_id in found.members if not found.is_superseded(client_id))

    def is_superseded(self, group: str, client_id: str) -> bool:
        """Return True if a member's subscription was replaced by one of a higher version.

        Such a member gets no more messages.
        """
        found = self._consumers.get(group)
        return found is not None and found.is_superseded(client_id)

    def check_not_superseded(self, group: str, client_id: str | None) -> None:
        """Raise SubscriptionMismatch if the member is superseded.

        A client that is not a member passes.
        """
        if client_id is not None and self.is_superseded(group, client_id):
            found = self._consumers[group]
            raise _superseded(group, found, client_id, found.members[client_id].version)

    def consumer_group(self, group: str) -> ConsumerGroup:
        """Return a consumer group that has members. Raise GroupNotFound if it has none."""
        found = self._consumers.get(group)
        if found is None:
            raise GroupNotFound(f"no consumer for this group, {group}")
        return found

    def has_members(self, group: str) -> bool:
        """Return True if a member of a consumer group is connected."""
        return group in self._consumers

    def owners(self, group: str) -> dict[Queue, FetchingMember]:
        """Return which member of a group fetches which queue.

        Queues that no member has fetched yet are left out.
        """
        found = self._consumers.get(group)
        return {} if found is None else dict(found.owners)

    def waits_for(self, group: str) -> set[str]:
        """Return the missing topics that a group's members wait for.

        The result is empty if the group has no members.
        """
        found = self._consumers.get(group)
        return set() if found is None else found.waits_for

    def consumer_groups(self) -> dict[str, ConsumerGroup]:
        """Return all consumer groups that have members."""
        return dict(self._consumers)

    def producer_groups(self) -> dict[str, list[GroupMember]]:
        """Return all producer groups that have members."""
        return {name: list(members.values()) for name, members in self._producers.items()}

    def producer_group_names(self) -> set[str]:
        """Return the names of all producer groups that have members."""
        return set(self._producers)

    def clients(self, group: str) -> list[ConnectedClient]:
        """Return the members of a consumer group, by client id; [] if it has none."""
        found = self._consumers.get(group)
        return [] if found is None else [found.members[c].client for c in sorted(found.members)]

    def producers(self, group: str) -> list[ConnectedClient]:
        """Return the members of a producer group, by client id; [] if it has none."""
        members = self._producers.get(group, {})
        return [members[c].client for c in sorted(members)]

    def connection_of(self, client_id: str) -> object | None:
        """Return a client's newest connection, or None without one.

        The result is also None if the client is unknown.
        """
        client = self._clients.get(client_id)
        return client.connections[-1] if client is not None and client.connections else None

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return a group's subscription to a topic in its newest heartbeat, or None.

        Raise GroupNotFound if it has no members.
        """
        return self.consumer_group(group).subscriptions.get(topic)

    def connections(self, group: str) -> list[object]:
        """Return all connections of a consumer group's members, each once."""
        return list({id(c): c for client in self.clients(group) for c in client.connections}.values())


def _is_below(version: int | None, other: int | None) -> bool:
    """Return True if both versions are known, and the first one is lower."""
    return version is not None and other is not None and version < other


def _superseded(name: str, group: ConsumerGroup, client_id: str, version: int | None) -> SubscriptionMismatch:
    """Return the error for a member of a lower version."""
    newest = next(each for each in group.members.values() if each.version == group.in_force)
    error = SubscriptionMismatch(
        f"group {name}: {client_id} has subscription_version {version}, but version {group.in_force} is in force: "
        f"member {newest.client.client_id} subscribes to {_shown(_plain(newest.subscriptions))}",
        remedy="to go back to the older subscription, stop the members of the newer one first",
    )
    error.in_force = group.in_force
    return error


def _weight_of(subscriptions: Mapping[str, Subscription]) -> int:
    texts = sum(_bytes_of(topic) + _bytes_of(each.expression) for topic, each in subscriptions.items())
    return 1 + (texts + 100 * len(subscriptions)) // BYTES_PER_MEMBERSHIP


def _bytes_of(text: str) -> int:
    """Return how many bytes a text takes in memory."""
    return len(text) if text.isascii() else 4 * len(text)


def _check_words(consumer: ConsumerData) -> None:
    kinds = {each.kind for each in (consumer.subscriptions or {}).values()}
    for word in (consumer.consume_type, consumer.message_model, consumer.consume_from_where, *kinds):
        if len(word) > _WORD_CHARACTERS:
            raise InvalidInput("consumerDataSet", f"words of at most {_WORD_CHARACTERS} characters", word)


def _plain(subscriptions: Mapping[str, Subscription]) -> dict[str, tuple[str, str]]:
    return {topic: (s.kind, s.expression) for topic, s in subscriptions.items()}


def _check_same(
    client_id: str,
    requested: Mapping[str, Subscription],
    way: tuple[str, str],
    group: str,
    members: Iterable[GroupMember],
) -> None:
    """Raise SubscriptionMismatch if another connected member subscribes or consumes differently.

    `client_id` itself is skipped.
    """
    retries = retry_topic(group)  # RocketMQ's clients name it among their subscriptions, ours do not

    def of_user(subscriptions: Mapping[str, Subscription]) -> dict[str, tuple[str, str]]:
        return {topic: subscription for topic, subscription in _plain(subscriptions).items() if topic != retries}

    mine = of_user(requested)
    for member in members:
        other = member.client
        if other.client_id == client_id or not other.connections:
            continue
        theirs = of_user(member.subscriptions)
        if theirs != mine:
            raise SubscriptionMismatch(
                f"group {group}: {client_id} subscribes to {_shown(mine)}, "
                f"but member {other.client_id} subscribes to {_shown(theirs)}",
                remedy="members of one group must have the same subscriptions; use another group name",
            )
        if member.way != way:
            raise SubscriptionMismatch(
                f"group {group}: {client_id} subscribes to {_shown(mine)} by {'/'.join(way)}, "
                f"but member {other.client_id} by {'/'.join(member.way)}",
                remedy="members of one group must consume in the same way; use another group name",
            )


def _shown(subscriptions: Mapping[str, tuple[str, str]]) -> str:
    return ", ".join(f"{topic} [{expression}]" for topic, (_, expression) in sorted(subscriptions.items()))
