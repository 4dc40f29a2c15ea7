"""The route table of a name server: registered brokers and their topics.

It is in memory, without I/O and with an injected clock. Times are seconds of a monotonic clock.

All data comes from the brokers. A registration has all topics of a broker and the version of its topic table, a
heartbeat only the version. A broker whose version differs from the registered one is asked to register again, so a name
server that starts empty is complete after one heartbeat interval.

A group's master is registered as replica 0, and the other replicas as 1 and above, each at its own address. Without a
master there is no replica 0. If two brokers register as the master, the one of the larger epoch is it, whichever
registered later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from raymq.actors.errors import FencedEpoch, InvalidInput, ServerBusy, TopicNotFound, TopicUnavailable, no_route_to
from raymq.actors.names.recently_left_brokers import RecentlyLeftBrokers
from raymq.actors.protocol import HEARTBEAT_SECONDS, MASTER_ID, PERM_WRITE, ClusterView, QueueData, TopicRoute
from raymq.storage.files.json_file import DataVersion

#: Brokers leave the routes after this long without a heartbeat: a crashed broker leaves the routes in under 5 s.
EXPIRY_SECONDS = 4.0
#: Brokers whose connection has closed leave the routes after this long without a heartbeat.
SUSPECT_SECONDS = 2.0

#: A name server younger than this does not report "no such topic": the topic's broker may not have registered yet.
LEARNING_SECONDS = 1.5 * HEARTBEAT_SECONDS

#: Limits, because any client of a name server can register invented brokers: the most registrations of one connection
#: (a broker has its own connection; a RocketMQ process may hold several brokers) and of all, the most topics of all
#: together (brokers that have left share what the others leave free), ...
MAX_PER_CONNECTION = 16
MAX_REGISTRATIONS = 2_000
MAX_TOPICS = 1_000_000
#: ... and the greatest length of a name or an address, in characters.
MAX_NAME_CHARACTERS = 255


@dataclass(slots=True)
class _Registration:
    cluster: str
    address: str
    topics: dict[str, QueueData]
    #: The longest message body that the broker accepts; None if it has not reported one.
    max_body_bytes: int | None
    #: The version of the broker's topic table; None once this registration differs from it.
    version: DataVersion | None
    connection: object
    last_seen: float
    patience_seconds: float
    #: The epoch of the broker's master; 0 where each broker has one copy.
    epoch: int = 0
    #: The address for replication that the broker reports.
    ha_address: str = ""


@dataclass(slots=True)
class RouteTable:
    """The registrations of all replicas, by broker name and replica id."""

    clock: Callable[[], float]
    expiry_seconds: float = EXPIRY_SECONDS
    _brokers: dict[str, dict[int, _Registration]] = field(default_factory=dict)
    #: The largest epoch of a master, by the name of a group with a registered replica.
    _epochs: dict[str, int] = field(default_factory=dict)
    #: Brokers whose write permission was wiped; later registrations do not restore it.
    _read_only: set[str] = field(default_factory=set)
    _away: RecentlyLeftBrokers = field(init=False)
    _started: float = 0.0
    #: The number of all registrations, and of all their topics.
    _count: int = 0
    _topics: int = 0

    def __post_init__(self) -> None:
        self._started = self.clock()
        self._away = RecentlyLeftBrokers(self.clock)

    @property
    def seconds(self) -> float:
        """Return the age of this table in seconds.

        Brokers that left before its start are unknown.
        """
        return self.clock() - self._started

    # -- requests of brokers ---------------------------------------------------------------------------------------

    def register(
        self,
        cluster: str,
        broker: str,
        replica: int,
        address: str,
        topics: Mapping[str, QueueData],
        version: DataVersion | None = None,
        connection: object = None,
        *,
        max_body_bytes: int | None = None,
        ha_address: str = "",
    ) -> None:
        """Register a replica with all of its topics, in place of its former registration.

        A registration of the same address as another replica of the group is removed.

        Args:
            version: the version of its topic table; its `state_version` is the epoch that the broker is master in, or
                follows.
            max_body_bytes: the longest message body that it accepts; None if the broker does not report it.
            connection: the connection of the request; see `connection_closed`.
            ha_address: the broker's address for replication.

        Raises:
            InvalidInput: a name or the address is too long, the replica is below 0 (it would sort before its master),
                or the connection has registered too many others.
            FencedEpoch: the broker registers as master, and another broker was in a larger epoch.
            ServerBusy: there are too many brokers or topics. Registered brokers stay, and may register again with as
                many topics as before.
        """
        _check_names(cluster, broker, address)
        if replica < 0:
            raise InvalidInput("brokerId", "0 for a master, more for another replica", replica)
        epoch = 0 if version is None else version.state_version
        replicas = self._brokers.get(broker, {})
        if replica == MASTER_ID:
            self._check_epoch(broker, address, epoch)
        known = replicas.get(replica)
        others = [each for each, other in replicas.items() if other.address == address and each != replica]
        replaced = [each for each in (known, *(replicas[other] for other in others)) if each is not None]
        if not replaced:
            self._check_new(broker, connection)
        self._count_topics(len(topics) - sum(len(each.topics) for each in replaced))
        self._count += 1 - len(replaced)
        before = _speaker(replicas)
        for other in others:
            del replicas[other]
        self._brokers.setdefault(broker, {})[replica] = _Registration(
            cluster,
            address,
            dict(topics),
            max_body_bytes,
            version,
            connection,
            self.clock(),
            self.expiry_seconds,
            epoch,
            ha_address,
        )
        if replica == MASTER_ID and epoch > 0:
            self._epochs[broker] = max(epoch, self._epochs.get(broker, 0))
        self._speaks_now(broker, before)

    def _check_epoch(self, broker: str, address: str, epoch: int) -> None:
        known = self._brokers.get(broker, {}).get(MASTER_ID)
        if known is not None and known.address == address:
            return  # the same broker; a register that was created again starts with low epochs
        newest = max(self._epochs.get(broker, 0), 0 if known is None else known.epoch)
        if epoch < newest:
            where = "" if known is None else f", at {known.address}"
            raise FencedEpoch(f"{broker}: {address} is master of epoch {epoch}, and epoch {newest} has begun{where}")

    def _speaks_now(self, broker: str, before: _Registration | None) -> None:
        """Update the brokers that have left, after the replicas of a group have changed.

        A group without a replica that reports its topics has left.
        """
        replicas = self._brokers.get(broker, {})
        if _speaker(replicas) is not None:
            self._away.remove(broker)
        elif before is not None:
            read_only = broker in self._read_only
            self._away.add(broker, before.cluster, before.address, before.topics, read_only=read_only)
        if not replicas:
            self._epochs.pop(broker, None)
        self._forget_those_away()

    def _check_new(self, broker: str, connection: object) -> None:
        if self._count >= MAX_REGISTRATIONS:
            raise ServerBusy(f"{MAX_REGISTRATIONS} brokers are registered, which is the limit")
        of_connection = sum(each.connection is connection for _, _, each in self._registrations())
        if connection is not None and of_connection >= MAX_PER_CONNECTION:
            limit = f"at most {MAX_PER_CONNECTION} brokers of one connection"
            raise InvalidInput("brokerName", limit, broker, remedy="register more brokers over another connection")

    def _count_topics(self, more: int) -> None:
        if more > 0 and self._topics + more > MAX_TOPICS:
            raise ServerBusy(f"the brokers have {self._topics} topics together, at most {MAX_TOPICS} are allowed")
        self._topics += more

    def heartbeat(
        self, broker: str, replica: int, address: str, version: DataVersion, connection: object = None
    ) -> bool:
        """Record a heartbeat; return False if the broker has to register.

        It has to if it is not registered with this address and version.
        """
        known = self._brokers.get(broker, {}).get(replica)
        if known is None or known.address != address:
            return False
        known.last_seen = self.clock()
        known.patience_seconds = self.expiry_seconds
        known.connection = connection
        return known.version == version

    def amend(
        self,
        broker: str,
        replica: int,
        since: DataVersion,
        version: DataVersion,
        changed: Mapping[str, QueueData],
        deleted: Collection[str],
        address: str | None = None,
    ) -> bool:
        """Apply topic changes since version `since`; return False if the broker has to register.

        It has to if `since` is not the registered version.

        Args:
            address: the address of the broker that sends the changes; a registration of another address is not changed.
                None: any address.

        Raises:
            ServerBusy: as `register`; nothing was changed.
        """
        known = self._brokers.get(broker, {}).get(replica)
        if known is None or known.version != since or address not in (None, known.address):
            return False
        if version.state_version != known.epoch:
            return False  # another epoch begins with a registration
        removed = known.topics.keys() & set(deleted) - changed.keys()
        self._count_topics(len(changed.keys() - known.topics.keys()) - len(removed))
        known.topics.update(changed)
        for topic in removed:
            del known.topics[topic]
        known.version = version
        known.last_seen = self.clock()
        return True

    def unregister(self, broker: str, replica: int, address: str | None = None) -> None:
        """Remove a broker that stops; its topics are remembered for a while.

        Args:
            address: the address of the broker that stops; a registration of another address stays. None: any address.
        """
        replicas = self._brokers.get(broker, {})
        known = replicas.get(replica)
        if known is None or address not in (None, known.address):
            return
        before = _speaker(replicas)
        del replicas[replica]
        self._count -= 1
        self._topics -= len(known.topics)
        if not replicas:
            del self._brokers[broker]
        self._speaks_now(broker, before)

    def forget_left_broker(self, broker: str) -> None:
        """Forget a broker that was removed for good.

        Clients do not wait for its queues any more.
        """
        self._away.remove(broker)

    def _forget_those_away(self) -> None:
        """Drop brokers that have left, as far as registered brokers need their room."""
        self._away.keep_at_most(MAX_REGISTRATIONS - self._count, MAX_TOPICS - self._topics)

    def connection_closed(self, connection: object) -> None:
        """Shorten the expiry of the brokers whose last request came on this connection.

        A later heartbeat restores it.
        """
        for _, _, registration in self._registrations():
            if registration.connection is connection:
                registration.patience_seconds = min(registration.patience_seconds, SUSPECT_SECONDS)

    def expire(self) -> list[str]:
        """Remove replicas without a recent heartbeat; return the names of their brokers."""
        now = self.clock()
        dead = [
            (broker, replica)
            for broker, replica, registration in self._registrations()
            if now - registration.last_seen > registration.patience_seconds
        ]
        for broker, replica in dead:
            self.unregister(broker, replica)
        self._forget_those_away()
        return [broker for broker, _ in dead]

    def check_all_known(self, brokers: Iterable[str]) -> None:
        """Raise ServerBusy if the table is new and lacks one of these brokers.

        A route might then lack queues, and a message with a sharding key would go to another queue.
        """
        if self.seconds < LEARNING_SECONDS and not all(map(self._is_known, brokers)):
            raise _just_started()

    def _is_known(self, broker: str) -> bool:
        """Return True if the broker's topics are known, or it has left.

        A replica that follows may be registered without the topics of its group.
        """
        return _speaker(self._brokers.get(broker, {})) is not None or broker in self._away

    # -- requests of clients ---------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute:
        """Return the route of `topic`.

        Raises:
            TopicNotFound: no broker has it.
            TopicUnavailable: brokers that have left had it, or no broker is registered.
            ServerBusy: the topic is unknown, and this name server has just started.
        """
        queues: list[QueueData] = []
        addresses: dict[str, str] = {}
        limits: dict[str, int] = {}
        for broker, replicas in sorted(self._brokers.items()):
            speaker = _speaker(replicas)
            data = None if speaker is None else speaker.topics.get(topic)
            if data is not None and speaker is not None:
                queues.append(replace(data, perm=data.perm & ~PERM_WRITE) if broker in self._read_only else data)
                addresses[broker] = speaker.address
                if speaker.max_body_bytes is not None:
                    limits[broker] = speaker.max_body_bytes
        if not queues and self.seconds < LEARNING_SECONDS:
            raise _just_started()
        away = self._away.of(topic)
        if not queues and (away or not self._brokers):
            raise TopicUnavailable(topic, [each.data.broker for each in away], no_route_to(topic))
        if not queues:
            raise TopicNotFound(no_route_to(topic))
        return TopicRoute(topic, tuple(queues), addresses, limits, away)

    def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of the topics of a cluster, or of all. Any thread."""
        names: set[str] = set()
        for replicas in list(self._brokers.values()):
            for each in list(replicas.values()):
                if cluster in (None, each.cluster):
                    names.update(each.topics)
        return list(names)

    def view(self) -> ClusterView:
        """Return all registered brokers, and those that have left lately."""
        return ClusterView(
            {
                broker: (next(iter(replicas.values())).cluster, {i: r.address for i, r in sorted(replicas.items())})
                for broker, replicas in sorted(self._brokers.items())
            },
            self._away.addresses(),
        )

    def member_group(self, cluster: str, broker: str) -> dict[int, str]:
        """Return the addresses of a group's replicas by id.

        The result is empty if that cluster has no such group.
        """
        replicas = self._brokers.get(broker, {})
        return {number: each.address for number, each in sorted(replicas.items()) if each.cluster == cluster}

    def master(self, broker: str) -> tuple[str, str]:
        """Return the address of a group's master, and its address for replication; else ""."""
        known = self._brokers.get(broker, {}).get(MASTER_ID)
        return ("", "") if known is None else (known.address, known.ha_address)

    # -- requests of administrators --------------------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic from the table, everywhere or in one cluster.

        A broker that still has the topic registers it again.
        """
        for _, _, registration in self._registrations():
            if topic in registration.topics and cluster in (None, registration.cluster):
                del registration.topics[topic]
                self._topics -= 1
                registration.version = None
        self._away.deleted(topic, cluster)

    def wipe_write_permission(self, broker: str) -> int:
        """Make a broker's topics read-only; return how many were writable until now."""
        count = 0 if broker in self._read_only else self._writable_topics(broker)
        if broker in self._brokers:
            self._read_only.add(broker)
        return count

    def add_write_permission(self, broker: str) -> int:
        """Undo `wipe_write_permission`; return how many topics are writable now."""
        self._read_only.discard(broker)
        return self._writable_topics(broker)

    def _registrations(self) -> Iterator[tuple[str, int, _Registration]]:
        for broker, replicas in self._brokers.items():
            for replica, registration in replicas.items():
                yield broker, replica, registration

    def _writable_topics(self, broker: str) -> int:
        speaker = _speaker(self._brokers.get(broker, {}))
        return 0 if speaker is None else sum(bool(data.perm & PERM_WRITE) for data in speaker.topics.values())


def _just_started() -> ServerBusy:
    return ServerBusy("the name server has just started; not all brokers have registered yet")


def _speaker(replicas: Mapping[int, _Registration]) -> _Registration | None:
    """Return the replica whose topics count as the group's; None if there is none.

    It is the master, else the first replica that has registered topics, as in RocketMQ.
    """
    if (master := replicas.get(MASTER_ID)) is not None:
        return master
    return next((each for _, each in sorted(replicas.items()) if each.topics), None)


def _check_names(*texts: str) -> None:
    for name, text in zip(("clusterName", "brokerName", "brokerAddr"), texts, strict=True):
        if len(text) > MAX_NAME_CHARACTERS:
            raise InvalidInput(name, f"at most {MAX_NAME_CHARACTERS} characters", text)
