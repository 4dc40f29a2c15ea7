"""What a name server knows: which brokers live, and which topics they have. In memory, no I/O, injected clock.

Everything is learned from the brokers: a registration tells all topics of a broker and the version of its topic table,
a heartbeat only the version. One whose version is not the registered one is told to register again, so a name server
that starts empty knows all one heartbeat later. Times are seconds of a monotonic clock.

A group's master is registered as 0, its other replicas as 1 and more, each at an address of its own. Without a master
there is no 0. Where two say that they are the master, the one of the larger epoch is, whoever of them came later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from raymq.actors.errors import FencedEpoch, InvalidInput, ServerBusy, TopicNotFound, TopicUnavailable, no_route_to
from raymq.actors.names.away import AwayBrokers
from raymq.actors.protocol import HEARTBEAT_SECONDS, MASTER_ID, PERM_WRITE, ClusterView, QueueData, TopicRoute
from raymq.storage.files.json_file import DataVersion
from raymq.storage.steps import Steps, finish

#: Brokers leave the routes after this long without a heartbeat: a dead broker leaves the routes in under 5 s,
EXPIRY_SECONDS = 4.0
#: and after this long if the connection that they registered on has closed as well.
SUSPECT_SECONDS = 2.0

#: A name server younger than this does not say "no such topic": the topic's broker may not have registered yet.
LEARNING_SECONDS = 1.5 * HEARTBEAT_SECONDS

#: Who can reach a name server can make up brokers. So many may be registered, of one connection and of all (a broker
#: has one of its own; a process of RocketMQ's may hold several brokers), with so many topics together (those that are
#: away have what room the others leave), ...
MOST_OF_A_CONNECTION = 16
MOST_REGISTRATIONS = 2_000
MOST_TOPICS = 1_000_000
#: ... under names and addresses of so many characters.
MAX_NAME_CHARACTERS = 255

#: So many topics are listed in one step.
_NAMES_AT_ONCE: Final = 2_000
_PARTS: Final = 64


@dataclass(slots=True)
class _Registration:
    cluster: str
    address: str
    topics: dict[str, QueueData]
    #: The longest body that it takes; None if it has not said.
    max_body_bytes: int | None
    #: Of the broker's topic table; None once something here no longer agrees with it.
    version: DataVersion | None
    connection: object
    last_seen: float
    patience_seconds: float
    #: The one that the broker is master in, or follows; 0 where each broker has one copy.
    epoch: int = 0
    #: Where replicas would connect to it, as it says.
    ha_address: str = ""


@dataclass(slots=True)
class RouteTable:
    """The registrations of all replicas, by broker name and replica id."""

    clock: Callable[[], float]
    expiry_seconds: float = EXPIRY_SECONDS
    _brokers: dict[str, dict[int, _Registration]] = field(default_factory=dict)
    #: The largest epoch of a master, by the name of a group of which some replica is registered.
    _epochs: dict[str, int] = field(default_factory=dict)
    #: Brokers whose write permission was wiped; it stays so over their next registrations.
    _read_only: set[str] = field(default_factory=set)
    _away: AwayBrokers = field(init=False)
    _started: float = 0.0
    #: Of all registrations.
    _count: int = 0
    _topics: int = 0

    def __post_init__(self) -> None:
        self._started = self.clock()
        self._away = AwayBrokers(self.clock)

    @property
    def seconds(self) -> float:
        """How long it is there: of who left before it knows nothing."""
        return self.clock() - self._started

    # -- what brokers say ------------------------------------------------------------------------------------------

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
        """All that a broker has, replacing what it said before. What it said as another replica is over.

        Args:
            version: of its topics; its `state_version` is the epoch that the broker is master in, or follows.
            max_body_bytes: the longest body that it takes; None where it does not say.
            connection: what it came on; see `connection_closed`.
            ha_address: where replicas would connect to it.

        Raises:
            InvalidInput: a name or the address is too long, the replica is below 0, where it would come before its
                master, or the connection has registered too many others.
            FencedEpoch: it says that it is the master, and another broker was in a larger epoch.
            ServerBusy: there are as many brokers, or topics of them, as there may be. Who is here already stays, and
                may register again with as many topics.
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
            return  # the same broker; a register that was founded anew counts from the beginning
        newest = max(self._epochs.get(broker, 0), 0 if known is None else known.epoch)
        if epoch < newest:
            where = "" if known is None else f", at {known.address}"
            raise FencedEpoch(f"{broker}: {address} is master of epoch {epoch}, and epoch {newest} has begun{where}")

    def _speaks_now(self, broker: str, before: _Registration | None) -> None:
        """Who says what the group has may have changed: without anybody it is away."""
        replicas = self._brokers.get(broker, {})
        if _speaker(replicas) is not None:
            self._away.back(broker)
        elif before is not None:
            self._away.left(broker, before.cluster, before.topics, read_only=broker in self._read_only)
        if not replicas:
            self._epochs.pop(broker, None)
        self._forget_those_away()

    def _check_new(self, broker: str, connection: object) -> None:
        if self._count >= MOST_REGISTRATIONS:
            raise ServerBusy(f"{MOST_REGISTRATIONS} brokers are registered, one more may not be")
        of_connection = sum(each.connection is connection for _, _, each in self._registrations())
        if connection is not None and of_connection >= MOST_OF_A_CONNECTION:
            limit = f"at most {MOST_OF_A_CONNECTION} brokers of one connection"
            raise InvalidInput("brokerName", limit, broker, remedy="register others over connections of their own")

    def _count_topics(self, more: int) -> None:
        if more > 0 and self._topics + more > MOST_TOPICS:
            raise ServerBusy(f"the brokers have {self._topics} topics, {MOST_TOPICS} they may have together")
        self._topics += more

    def heartbeat(
        self, broker: str, replica: int, address: str, version: DataVersion, connection: object = None
    ) -> bool:
        """A broker lives. False if it is not registered with this address and version: it has to register."""
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
        """What changed in a broker's topics after `since`. False if that is not registered: it has to register.

        Args:
            address: the one that tells it; what another one has registered is not changed. None: whoever it is.

        Raises:
            ServerBusy: as `register`; nothing was changed.
        """
        known = self._brokers.get(broker, {}).get(replica)
        if known is None or known.version != since or address not in (None, known.address):
            return False
        if version.state_version != known.epoch:
            return False  # another epoch begins with a registration
        gone = known.topics.keys() & set(deleted) - changed.keys()
        self._count_topics(len(changed.keys() - known.topics.keys()) - len(gone))
        known.topics.update(changed)
        for topic in gone:
            del known.topics[topic]
        known.version = version
        known.last_seen = self.clock()
        return True

    def unregister(self, broker: str, replica: int, address: str | None = None) -> None:
        """A broker stops in good order. It may come back: what it had is remembered for a while.

        Args:
            address: the one that is to leave; whoever has become the same replica since stays. None: whoever it is.
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

    def forget_away(self, broker: str) -> None:
        """It is gone for good: nobody waits for what it had."""
        self._away.back(broker)

    def _forget_those_away(self) -> None:
        """Those that live have the room first."""
        self._away.keep_at_most(MOST_REGISTRATIONS - self._count, MOST_TOPICS - self._topics)

    def connection_closed(self, connection: object) -> None:
        """Brokers whose last word came on it are suspected: they expire sooner, unless they are heard again."""
        for _, _, registration in self._registrations():
            if registration.connection is connection:
                registration.patience_seconds = min(registration.patience_seconds, SUSPECT_SECONDS)

    def expire(self) -> list[str]:
        """Forget who was silent for too long; returns their names."""
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

    def check_heard_of(self, brokers: Iterable[str]) -> None:
        """ServerBusy where it was just started, and has not heard of all of these yet: a route might lack queues, and a
        sharding key would go to another one.
        """
        if self.seconds < LEARNING_SECONDS and not all(map(self._is_heard_of, brokers)):
            raise _just_started()

    def _is_heard_of(self, broker: str) -> bool:
        """A replica that follows is there, and does not say what its group has."""
        return _speaker(self._brokers.get(broker, {})) is not None or broker in self._away

    # -- what clients ask ------------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute:
        """Where `topic` lives.

        Raises:
            TopicNotFound: no broker has it.
            TopicUnavailable: brokers that are away had it, or there is no broker who could say.
            ServerBusy: nor could it be known already: this name server has only just started.
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
        """The names of all topics, or of those that a cluster has, sorted."""
        return sorted(finish(self.listing_topics(cluster)))

    def listing_topics(self, cluster: str | None = None) -> Steps[list[str]]:
        """`topics` of when it begins, in steps and in any order."""
        tables = [list(each.topics) for _, _, each in self._registrations() if cluster in (None, each.cluster)]
        # One table of all names would at times be made anew as a whole, for more room.
        parts: list[dict[str, None]] = [{} for _ in range(_PARTS)]
        for number, name in enumerate(chain.from_iterable(tables)):
            if number and number % _NAMES_AT_ONCE == 0:
                yield None
            parts[hash(name) % _PARTS][name] = None
        names: list[str] = []
        for part in parts:
            if len(names) > _NAMES_AT_ONCE:
                yield None
            names += part
        return names

    def view(self) -> ClusterView:
        """All living brokers."""
        return ClusterView(
            {
                broker: (next(iter(replicas.values())).cluster, {i: r.address for i, r in sorted(replicas.items())})
                for broker, replicas in sorted(self._brokers.items())
            }
        )

    def member_group(self, cluster: str, broker: str) -> dict[int, str]:
        """The addresses of a group's replicas by their ids; empty where that cluster has no such group."""
        replicas = self._brokers.get(broker, {})
        return {number: each.address for number, each in sorted(replicas.items()) if each.cluster == cluster}

    def master(self, broker: str) -> tuple[str, str]:
        """Where a group's master is, and where replicas would connect to it, as far as it said that; else ""."""
        known = self._brokers.get(broker, {}).get(MASTER_ID)
        return ("", "") if known is None else (known.address, known.ha_address)

    # -- what administrators do ------------------------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic at once, everywhere or in a cluster. A broker that still has it brings it back."""
        for _, _, registration in self._registrations():
            if topic in registration.topics and cluster in (None, registration.cluster):
                del registration.topics[topic]
                self._topics -= 1
                registration.version = None
        self._away.deleted(topic, cluster)

    def wipe_write_permission(self, broker: str) -> int:
        """Take a broker out of what producers are offered; how many of its topics could be written until now."""
        count = 0 if broker in self._read_only else self._writable_topics(broker)
        if broker in self._brokers:
            self._read_only.add(broker)
        return count

    def add_write_permission(self, broker: str) -> int:
        """Give a broker back to producers; how many of its topics can be written now."""
        self._read_only.discard(broker)
        return self._writable_topics(broker)

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        assert all(self._brokers.values()), "a broker without a replica stays listed"
        for replicas in self._brokers.values():
            assert len({registration.cluster for registration in replicas.values()}) == 1
            assert len({registration.address for registration in replicas.values()}) == len(replicas)
        assert self._epochs.keys() <= self._brokers.keys()
        registrations = [registration for _, _, registration in self._registrations()]
        assert self._count == len(registrations)
        assert self._topics == sum(len(registration.topics) for registration in registrations)
        self._away.validate()

    def _registrations(self) -> Iterator[tuple[str, int, _Registration]]:
        for broker, replicas in self._brokers.items():
            for replica, registration in replicas.items():
                yield broker, replica, registration

    def _writable_topics(self, broker: str) -> int:
        speaker = _speaker(self._brokers.get(broker, {}))
        return 0 if speaker is None else sum(bool(data.perm & PERM_WRITE) for data in speaker.topics.values())


def _just_started() -> ServerBusy:
    return ServerBusy("the name server has just started and has not heard from all brokers yet")


def _speaker(replicas: Mapping[int, _Registration]) -> _Registration | None:
    """Whose topics are the group's: the master's, else those of the first replica that has told any, as RocketMQ's
    do. None: nobody says it.
    """
    if (master := replicas.get(MASTER_ID)) is not None:
        return master
    return next((each for _, each in sorted(replicas.items()) if each.topics), None)


def _check_names(*told: str) -> None:
    for name, text in zip(("clusterName", "brokerName", "brokerAddr"), told, strict=True):
        if len(text) > MAX_NAME_CHARACTERS:
            raise InvalidInput(name, f"at most {MAX_NAME_CHARACTERS} characters", text)
