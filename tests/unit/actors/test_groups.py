"""Test clients, and the consumer and producer groups that they are in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.actors.broker.core.groups.client_registry import (
    CHANNEL_EXPIRY_SECONDS,
    ClientRegistry,
    ConsumerData,
    FetchPosition,
)
from raymq.actors.errors import GroupNotFound, InvalidInput, ServerBusy, SubscriptionMismatch
from raymq.actors.filter.tag_expression import Subscription
from raymq.actors.protocol import SESSION_GRACE_SECONDS
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants, validated


class Groups(ClientRegistry):
    """Extend the registry with a heartbeat in one call."""

    def heartbeat(
        self, client_id: str, connection: str, group: str = "g", strict: bool = False, **topics: str | tuple[str, int]
    ) -> bool:
        """Register a client with topics, given as name=expression or name=(expression, version)."""
        self.register_client(client_id, connection, "JAVA", 479)
        wanted = {}
        for topic, spec in topics.items():
            expression, version = (spec, 0) if isinstance(spec, str) else spec
            wanted[topic] = Subscription(topic, expression, version=version)
        return self.register_consumer(client_id, ConsumerData(group, wanted), strict=strict)

    def joins(self, client_id: str, expression: str, version: int | None) -> bool:
        """Subscribe to topic t over a separate connection, with a subscription version."""
        self.register_client(client_id, f"connection of {client_id}")
        return self.register_consumer(
            client_id, ConsumerData("g", {"t": Subscription("t", expression)}, version=version), strict=True
        )


@pytest.fixture
def groups(clock: FakeClock) -> Iterator[Groups]:
    with validated(Groups(clock)) as made:
        yield made


def test_members_are_distinguished_by_client_id(groups: Groups) -> None:
    assert groups.heartbeat("x", "c1", t="*")
    assert groups.heartbeat("y", "c2", t="*")
    assert not groups.heartbeat("x", "c1", t="*")
    assert groups.members("g") == ["x", "y"]
    assert set(groups.connections("g")) == {"c1", "c2"}


def test_connection_is_new_only_once(groups: Groups) -> None:
    assert groups.register_client("x", "c1")
    assert not groups.register_client("x", "c1")
    assert not groups.register_client("y", "c1"), "one connection may serve several clients"
    assert groups.register_client("x", "c2")


def test_closed_connection_ends_membership_after_grace_time(groups: Groups, clock: FakeClock) -> None:
    groups.heartbeat("x", "c1", t="*")
    groups.register_producer("x", "p")
    groups.connection_closed("c1")
    clock.advance(SESSION_GRACE_SECONDS - 0.1)
    assert groups.expire().groups == set()
    assert groups.members("g") == ["x"]
    assert groups.connection_of("x") is None
    clock.advance(0.2)
    gone = groups.expire()
    assert (gone.groups, gone.client_ids) == ({"g"}, {"x"})
    with pytest.raises(GroupNotFound):
        groups.members("g")
    assert groups.producers("p") == []


def test_client_reconnecting_in_grace_time_stays_member(groups: Groups, clock: FakeClock) -> None:
    groups.heartbeat("x", "c1", t="*")
    groups.connection_closed("c1")
    clock.advance(SESSION_GRACE_SECONDS - 0.1)
    assert not groups.heartbeat("x", "c2", t="*")
    clock.advance(SESSION_GRACE_SECONDS)
    assert groups.expire().client_ids == set()
    assert groups.connection_of("x") == "c2"


def test_client_keeps_membership_over_second_connection(groups: Groups, clock: FakeClock) -> None:
    groups.heartbeat("x", "c1", t="*")
    groups.heartbeat("x", "c2", t="*")
    assert groups.connection_of("x") == "c2"
    groups.connection_closed("c2")
    clock.advance(SESSION_GRACE_SECONDS)
    assert groups.expire().client_ids == set()
    assert groups.connection_of("x") == "c1"


def test_membership_without_heartbeat_expires(groups: Groups, clock: FakeClock) -> None:
    groups.heartbeat("x", "c1", "g", t="*")
    groups.heartbeat("x", "c1", "h", t="*")
    clock.advance(CHANNEL_EXPIRY_SECONDS - 1)
    groups.heartbeat("x", "c1", "h", t="*")
    clock.advance(1)
    gone = groups.expire()
    assert (gone.groups, gone.client_ids) == ({"g"}, set())
    assert groups.members("h") == ["x"]


def test_unregister_consumer_removes_member(groups: Groups) -> None:
    groups.heartbeat("x", "c1", t="*")
    assert groups.unregister_consumer("x", "g")
    assert not groups.unregister_consumer("x", "g")
    assert groups.clients("g") == []


def test_producer_groups_register_and_expire(groups: Groups, clock: FakeClock) -> None:
    groups.register_client("x", "c1", "GO", 400)
    groups.register_producer("x", "p")
    assert [(c.client_id, c.language, c.version, c.connections) for c in groups.producers("p")] == [
        ("x", "GO", 400, ["c1"])
    ]
    assert list(groups.producer_groups()) == ["p"]
    groups.unregister_producer("x", "p")
    assert groups.producers("p") == []
    groups.register_producer("x", "p")
    clock.advance(CHANNEL_EXPIRY_SECONDS)
    groups.expire()
    assert groups.producer_groups() == {}


def test_strict_member_mismatch_names_both_subscriptions(groups: Groups) -> None:
    groups.heartbeat("x", "c1", t="paid")
    with pytest.raises(SubscriptionMismatch, match=r"y subscribes to t \[shipped\].*x subscribes to t \[paid\]"):
        groups.heartbeat("y", "c2", strict=True, t="shipped")
    assert groups.members("g") == ["x"]


def test_existing_strict_member_stays(groups: Groups) -> None:
    groups.heartbeat("x", "c1", strict=True, t="paid")
    groups.heartbeat("y", "c2", t="shipped")
    assert not groups.heartbeat("x", "c1", strict=True, t="paid")


def test_retry_topic_is_ignored_in_subscription_comparison(groups: Groups) -> None:
    groups.heartbeat("x", "c1", **{"t": "paid", "%RETRY%g": "*"})
    assert groups.heartbeat("y", "c2", strict=True, t="paid")


def test_last_member_may_change_its_subscription(groups: Groups) -> None:
    groups.heartbeat("x", "c1", strict=True, t="paid")
    assert groups.heartbeat("x", "c1", strict=True, t="shipped"), "the others would have to be told"
    groups.connection_closed("c1")
    assert groups.heartbeat("y", "c2", strict=True, t="other")


def test_last_heartbeat_sets_group_subscription(groups: Groups) -> None:
    groups.heartbeat("x", "c1", t=("paid", 5))
    groups.heartbeat("y", "c2", t=("shipped", 6))
    assert groups.subscription("g", "t") == Subscription("t", "shipped", version=6)
    assert groups.subscription("g", "other") is None
    with pytest.raises(GroupNotFound):
        groups.subscription("nobody", "t")


def test_heartbeat_without_subscriptions_keeps_them(groups: Groups, clock: FakeClock) -> None:
    groups.heartbeat("x", "c1", t="paid")
    clock.advance(CHANNEL_EXPIRY_SECONDS - 1)
    assert not groups.register_consumer("x", ConsumerData("g", None))
    clock.advance(CHANNEL_EXPIRY_SECONDS - 1)
    assert groups.expire().groups == set()
    assert groups.consumer_group("g").subscriptions["t"].expression == "paid"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_IDS_PER_CONNECTION", "MAX_CLIENTS", "MAX_MEMBERSHIPS"):
        monkeypatch.setattr(
            f"raymq.actors.broker.core.groups.client_registry.{name}",
            {"MAX_MEMBERSHIPS": 12, "MAX_CLIENTS": 10}.get(name, 4),
        )


@pytest.mark.usefixtures("small")
def test_client_ids_are_bounded(groups: Groups, clock: FakeClock) -> None:
    """Guard against keeping each invented client id while its connection lives."""
    for number in range(4):
        groups.register_client(f"{number}", "c1")
    with pytest.raises(InvalidInput, match="4 client ids"):
        groups.register_client("another", "c1")
    assert not groups.register_client("3", "c1"), "one that is known comes again"
    for number in range(4, 10):
        groups.register_client(f"{number}", f"c{number}")
    with pytest.raises(ServerBusy):
        groups.register_client("another", "c2")
    groups.connection_closed("c1")
    clock.advance(SESSION_GRACE_SECONDS)
    groups.expire()
    assert groups.register_client("another", "c1")
    with pytest.raises(InvalidInput, match="1024 characters"):
        groups.register_client("x" * 1_025, "c1")


@pytest.mark.usefixtures("small")
def test_memberships_are_bounded(groups: Groups, clock: FakeClock) -> None:
    groups.register_client("x", "c1", "J" * 1_000)
    assert len(groups._clients["x"].language) < 100
    for number in range(6):
        groups.register_producer("x", f"p{number}")
        groups.register_producer("x", f"p{number}")
    for number in range(6):
        groups.heartbeat("x", "c1", f"g{number}", t="*")
    with pytest.raises(ServerBusy):
        groups.register_producer("x", "p")
    with pytest.raises(ServerBusy):
        groups.heartbeat("x", "c1", "g", t="*")
    with pytest.raises(ServerBusy):
        groups.heartbeat("x", "c1", "g0", t="x" * 256)
    assert not groups.heartbeat("x", "c1", "g0", t="*"), "who is a member stays one"
    groups.unregister_consumer("x", "g1")
    groups.unregister_producer("x", "p1")
    groups.heartbeat("x", "c1", "g0", t="x" * 500)
    with pytest.raises(ServerBusy):
        groups.register_producer("x", "p")
    groups.connection_closed("c1")
    clock.advance(SESSION_GRACE_SECONDS)
    groups.expire()
    assert groups._weight == 0


def test_heartbeat_memory_per_connection_is_bounded(groups: Groups, clock: FakeClock) -> None:
    """Guard against fifty heartbeats of 3.9 MB that hold 198 MB for their clients."""
    expression = "x" * 1_000_000
    for number in range(4):
        groups.heartbeat(f"x{number}", "c1", f"g{number}", t=f"{expression}{number}")
    with pytest.raises(InvalidInput, match="memberships of a connection"):
        groups.heartbeat("x4", "c1", "g4", t=f"{expression}4")
    assert groups.heartbeat("small", "c2", "g", t="*"), "others go on"
    assert not groups.heartbeat("x1", "c1", "g1", t=f"{expression}1"), "and so do those who were taken"
    with pytest.raises(InvalidInput, match="memberships of a connection"):
        groups.heartbeat("x0", "c3", "g0", t="😀" * 1_200_000)
    groups.unregister_consumer("x0", "g0")
    groups.heartbeat("x9", "c1", "g9", t=expression)
    groups.connection_closed("c1")
    clock.advance(SESSION_GRACE_SECONDS)
    groups.expire()
    check_invariants(groups)
    groups.heartbeat("x9", "c1", "g9", t=expression)


def test_second_connection_counts_memory_of_its_client(groups: Groups) -> None:
    groups.heartbeat("x", "c1", "g", t="x" * 3_000_000)
    groups.register_client("x", "c2")
    with pytest.raises(InvalidInput, match="memberships of a connection"):
        groups.heartbeat("y", "c2", "g2", t="x" * 3_000_000)
    check_invariants(groups)


def test_members_with_equal_subscriptions_share_one_object(groups: Groups) -> None:
    for number in range(3):
        groups.heartbeat(f"x{number}", f"c{number}", "g", t="paid")
    members = groups.consumer_group("g").members.values()
    assert len({id(member.subscriptions) for member in members}) == 1


def test_heartbeat_words_are_limited_to_64_characters(groups: Groups) -> None:
    groups.register_client("x", "c1")
    for words in ({"consume_type": "x" * 65}, {"message_model": "x" * 65}, {"consume_from_where": "x" * 65}):
        with pytest.raises(InvalidInput, match="64 characters"):
            groups.register_consumer("x", ConsumerData("g", {}, **words))
    with pytest.raises(InvalidInput, match="64 characters"):
        groups.register_consumer("x", ConsumerData("g", {"t": Subscription("t", "*", "x" * 65)}))


def test_newer_version_of_same_subscription_is_used(clock: FakeClock) -> None:
    """Cover a Java client that pulls by its newest version.

    Its pulls are refused while the version of its heartbeats is unknown.
    """
    table = ClientRegistry(clock)
    for version in (1, 2):
        table.register_client("a", 1)
        table.register_consumer("a", ConsumerData("g", {"t": Subscription("t", version=version)}))
        assert table.consumer_groups()["g"].subscriptions["t"].version == version


def test_higher_version_takes_over_group(groups: Groups) -> None:
    groups.joins("old", "paid", 0)
    groups.record_fetch("g", "old", {("t", 0): FetchPosition(0)})
    assert groups.joins("new", "*", 1), "the old member is told"
    assert groups.members("g") == ["new"]
    assert groups.owners("g") == {}
    groups.record_fetch("g", "old", {("t", 0): FetchPosition(0)})
    assert groups.owners("g") == {}
    for do in (lambda: groups.check_not_superseded("g", "old"), lambda: groups.joins("old", "paid", 0)):
        with pytest.raises(SubscriptionMismatch, match="version 1 is in force: member new subscribes to t") as caught:
            do()
        assert caught.value.in_force == 1
    groups.check_not_superseded("g", "new")
    groups.check_not_superseded("g", "unknown")
    assert set(groups.connections("g")) == {"connection of old", "connection of new"}, "both hear of changes"
    assert not groups.joins("new", "*", 1)


def test_equal_versions_require_equal_subscriptions(groups: Groups) -> None:
    groups.joins("a", "paid", 3)
    groups.joins("b", "paid", 3)
    with pytest.raises(SubscriptionMismatch) as caught:
        groups.joins("c", "*", 3)
    assert caught.value.in_force is None
    assert groups.members("g") == ["a", "b"]


@pytest.mark.parametrize(("first", "second"), [(None, 1), (1, None), (None, None)])
def test_members_without_version_require_equal_subscriptions(
    groups: Groups, first: int | None, second: int | None
) -> None:
    groups.joins("a", "paid", first)
    with pytest.raises(SubscriptionMismatch):
        groups.joins("b", "*", second)
    assert groups.joins("c", "paid", second)
    assert groups.members("g") == ["a", "c"]


def test_version_is_in_force_while_a_member_has_it(groups: Groups, clock: FakeClock) -> None:
    groups.joins("bad", "*", 2)
    groups.joins("worse", "*", 2)
    with pytest.raises(SubscriptionMismatch):
        groups.joins("good", "paid", 1)
    groups.unregister_consumer("bad", "g")
    groups.connection_closed("connection of worse")
    clock.advance(SESSION_GRACE_SECONDS - 0.1)
    groups.expire()
    with pytest.raises(SubscriptionMismatch):
        groups.joins("good", "paid", 1)
    clock.advance(0.2)
    groups.expire()
    assert groups.joins("good", "paid", 1)
