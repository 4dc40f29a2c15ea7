"""Clients, and the groups that they consume and produce in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.actors.broker.core.groups.clients import SILENCE_SECONDS, Consumer, GroupTable
from raymq.actors.errors import GroupNotFound, InvalidInput, ServerBusy, SubscriptionMismatch
from raymq.actors.filter.subscription import Subscription
from raymq.actors.protocol import GRACE_SECONDS
from tests.unit.actors.clock import FakeClock
from tests.validated import validated


class Groups(GroupTable):
    """A table with a heartbeat in one call."""

    def heartbeat(
        self, client_id: str, connection: str, group: str = "g", strict: bool = False, **topics: str | tuple[str, int]
    ) -> bool:
        """Topics are given as name=expression, or name=(expression, version)."""
        self.greet(client_id, connection, "JAVA", 479)
        wanted = {}
        for topic, told in topics.items():
            expression, version = (told, 0) if isinstance(told, str) else told
            wanted[topic] = Subscription(topic, expression, version=version)
        return self.consume(client_id, Consumer(group, wanted), strict=strict)

    def joins(self, client_id: str, expression: str, version: int | None) -> bool:
        """Topic t, over a connection of its own, with the version of its subscription."""
        self.greet(client_id, f"connection of {client_id}")
        return self.consume(
            client_id, Consumer("g", {"t": Subscription("t", expression)}, version=version), strict=True
        )


@pytest.fixture
def groups(clock: FakeClock) -> Iterator[Groups]:
    with validated(Groups(clock)) as made:
        yield made


def test_members_are_told_apart_by_client_id(groups: Groups) -> None:
    assert groups.heartbeat("x", "c1", t="*")
    assert groups.heartbeat("y", "c2", t="*")
    assert not groups.heartbeat("x", "c1", t="*")
    assert groups.members("g") == ["x", "y"]
    assert set(groups.connections("g")) == {"c1", "c2"}


def test_a_connection_is_new_once(groups: Groups) -> None:
    assert groups.greet("x", "c1")
    assert not groups.greet("x", "c1")
    assert not groups.greet("y", "c1"), "one connection may serve several clients"
    assert groups.greet("x", "c2")


def test_a_closed_connection_ends_membership_after_the_grace_time(groups: Groups, clock: FakeClock) -> None:
    groups.heartbeat("x", "c1", t="*")
    groups.produce("x", "p")
    groups.connection_closed("c1")
    clock.advance(GRACE_SECONDS - 0.1)
    assert groups.expire().groups == set()
    assert groups.members("g") == ["x"]
    assert groups.connection_of("x") is None
    clock.advance(0.2)
    gone = groups.expire()
    assert (gone.groups, gone.client_ids) == ({"g"}, {"x"})
    with pytest.raises(GroupNotFound):
        groups.members("g")
    assert groups.producers("p") == []


def test_a_client_that_comes_back_in_time_stays(groups: Groups, clock: FakeClock) -> None:
    groups.heartbeat("x", "c1", t="*")
    groups.connection_closed("c1")
    clock.advance(GRACE_SECONDS - 0.1)
    assert not groups.heartbeat("x", "c2", t="*")
    clock.advance(GRACE_SECONDS)
    assert groups.expire().client_ids == set()
    assert groups.connection_of("x") == "c2"


def test_one_of_two_connections_may_close(groups: Groups, clock: FakeClock) -> None:
    groups.heartbeat("x", "c1", t="*")
    groups.heartbeat("x", "c2", t="*")
    assert groups.connection_of("x") == "c2"
    groups.connection_closed("c2")
    clock.advance(GRACE_SECONDS)
    assert groups.expire().client_ids == set()
    assert groups.connection_of("x") == "c1"


def test_a_membership_that_no_heartbeat_renews_goes(groups: Groups, clock: FakeClock) -> None:
    groups.heartbeat("x", "c1", "g", t="*")
    groups.heartbeat("x", "c1", "h", t="*")
    clock.advance(SILENCE_SECONDS - 1)
    groups.heartbeat("x", "c1", "h", t="*")
    clock.advance(1)
    gone = groups.expire()
    assert (gone.groups, gone.client_ids) == ({"g"}, set())
    assert groups.members("h") == ["x"]


def test_leaving_in_good_order(groups: Groups) -> None:
    groups.heartbeat("x", "c1", t="*")
    assert groups.stop_consuming("x", "g")
    assert not groups.stop_consuming("x", "g")
    assert groups.clients("g") == []


def test_producers(groups: Groups, clock: FakeClock) -> None:
    groups.greet("x", "c1", "GO", 400)
    groups.produce("x", "p")
    assert [(c.client_id, c.language, c.version, c.connections) for c in groups.producers("p")] == [
        ("x", "GO", 400, ["c1"])
    ]
    assert list(groups.producer_groups()) == ["p"]
    groups.stop_producing("x", "p")
    assert groups.producers("p") == []
    groups.produce("x", "p")
    clock.advance(SILENCE_SECONDS)
    groups.expire()
    assert groups.producer_groups() == {}


def test_a_strict_member_is_refused_naming_both_subscriptions(groups: Groups) -> None:
    groups.heartbeat("x", "c1", t="paid")
    with pytest.raises(SubscriptionMismatch, match=r"y subscribes to t \[shipped\].*x subscribes to t \[paid\]"):
        groups.heartbeat("y", "c2", strict=True, t="shipped")
    assert groups.members("g") == ["x"]


def test_a_strict_member_that_is_in_stays_in(groups: Groups) -> None:
    groups.heartbeat("x", "c1", strict=True, t="paid")
    groups.heartbeat("y", "c2", t="shipped")
    assert not groups.heartbeat("x", "c1", strict=True, t="paid")


def test_the_retry_topic_makes_no_difference(groups: Groups) -> None:
    groups.heartbeat("x", "c1", **{"t": "paid", "%RETRY%g": "*"})
    assert groups.heartbeat("y", "c2", strict=True, t="paid")


def test_the_last_member_may_change_its_subscription(groups: Groups) -> None:
    groups.heartbeat("x", "c1", strict=True, t="paid")
    assert groups.heartbeat("x", "c1", strict=True, t="shipped"), "the others would have to be told"
    groups.connection_closed("c1")
    assert groups.heartbeat("y", "c2", strict=True, t="other")


def test_the_last_heartbeat_says_what_the_group_wants(groups: Groups) -> None:
    groups.heartbeat("x", "c1", t=("paid", 5))
    groups.heartbeat("y", "c2", t=("shipped", 6))
    assert groups.subscription("g", "t") == Subscription("t", "shipped", version=6)
    assert groups.subscription("g", "other") is None
    with pytest.raises(GroupNotFound):
        groups.subscription("nobody", "t")


def test_a_heartbeat_without_subscriptions_changes_none(groups: Groups, clock: FakeClock) -> None:
    groups.heartbeat("x", "c1", t="paid")
    clock.advance(SILENCE_SECONDS - 1)
    assert not groups.consume("x", Consumer("g", None))
    clock.advance(SILENCE_SECONDS - 1)
    assert groups.expire().groups == set()
    assert groups.consumer_group("g").subscriptions["t"].expression == "paid"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_IDS_OF_A_CONNECTION", "MOST_CLIENTS", "MOST_MEMBERSHIPS"):
        monkeypatch.setattr(
            f"raymq.actors.broker.core.groups.clients.{name}", {"MOST_MEMBERSHIPS": 12, "MOST_CLIENTS": 10}.get(name, 4)
        )


@pytest.mark.usefixtures("small")
def test_made_up_client_ids_are_bounded(groups: Groups, clock: FakeClock) -> None:
    """Each id that a connection made up was kept while the connection lived."""
    for number in range(4):
        groups.greet(f"{number}", "c1")
    with pytest.raises(InvalidInput, match="4 client ids"):
        groups.greet("another", "c1")
    assert not groups.greet("3", "c1"), "one that is known comes again"
    for number in range(4, 10):
        groups.greet(f"{number}", f"c{number}")
    with pytest.raises(ServerBusy):
        groups.greet("another", "c2")
    groups.connection_closed("c1")
    clock.advance(GRACE_SECONDS)
    groups.expire()
    assert groups.greet("another", "c1")
    with pytest.raises(InvalidInput, match="1024 characters"):
        groups.greet("x" * 1_025, "c1")


@pytest.mark.usefixtures("small")
def test_what_clients_say_that_they_are_in_is_bounded(groups: Groups, clock: FakeClock) -> None:
    groups.greet("x", "c1", "J" * 1_000)
    assert len(groups._clients["x"].language) < 100
    for number in range(6):
        groups.produce("x", f"p{number}")
        groups.produce("x", f"p{number}")
    for number in range(6):
        groups.heartbeat("x", "c1", f"g{number}", t="*")
    with pytest.raises(ServerBusy):
        groups.produce("x", "p")
    with pytest.raises(ServerBusy):
        groups.heartbeat("x", "c1", "g", t="*")
    with pytest.raises(ServerBusy):
        groups.heartbeat("x", "c1", "g0", t="x" * 256)
    assert not groups.heartbeat("x", "c1", "g0", t="*"), "who is a member stays one"
    groups.stop_consuming("x", "g1")
    groups.stop_producing("x", "p1")
    groups.heartbeat("x", "c1", "g0", t="x" * 500)
    with pytest.raises(ServerBusy):
        groups.produce("x", "p")
    groups.connection_closed("c1")
    clock.advance(GRACE_SECONDS)
    groups.expire()
    assert groups._weight == 0


def test_what_the_heartbeats_of_one_connection_may_keep_is_bounded(groups: Groups, clock: FakeClock) -> None:
    """Fifty heartbeats of 3.9 MB held 198 MB while their clients lived."""
    expression = "x" * 1_000_000
    for number in range(4):
        groups.heartbeat(f"x{number}", "c1", f"g{number}", t=f"{expression}{number}")
    with pytest.raises(InvalidInput, match="memberships of a connection"):
        groups.heartbeat("x4", "c1", "g4", t=f"{expression}4")
    assert groups.heartbeat("small", "c2", "g", t="*"), "others go on"
    assert not groups.heartbeat("x1", "c1", "g1", t=f"{expression}1"), "and so do those who were taken"
    with pytest.raises(InvalidInput, match="memberships of a connection"):
        groups.heartbeat("x0", "c3", "g0", t="😀" * 1_200_000)
    groups.stop_consuming("x0", "g0")
    groups.heartbeat("x9", "c1", "g9", t=expression)
    groups.connection_closed("c1")
    clock.advance(GRACE_SECONDS)
    groups.expire()
    groups.validate()
    groups.heartbeat("x9", "c1", "g9", t=expression)


def test_who_comes_over_another_connection_brings_along_what_he_holds(groups: Groups) -> None:
    groups.heartbeat("x", "c1", "g", t="x" * 3_000_000)
    groups.greet("x", "c2")
    with pytest.raises(InvalidInput, match="memberships of a connection"):
        groups.heartbeat("y", "c2", "g2", t="x" * 3_000_000)
    groups.validate()


def test_members_that_subscribe_alike_share_one_subscription(groups: Groups) -> None:
    for number in range(3):
        groups.heartbeat(f"x{number}", f"c{number}", "g", t="paid")
    members = groups.consumer_group("g").members.values()
    assert len({id(member.subscriptions) for member in members}) == 1


def test_words_of_a_heartbeat_are_no_texts(groups: Groups) -> None:
    groups.greet("x", "c1")
    for words in ({"consume_type": "x" * 65}, {"message_model": "x" * 65}, {"consume_from_where": "x" * 65}):
        with pytest.raises(InvalidInput, match="64 characters"):
            groups.consume("x", Consumer("g", {}, **words))
    with pytest.raises(InvalidInput, match="64 characters"):
        groups.consume("x", Consumer("g", {"t": Subscription("t", "*", "x" * 65)}))


def test_a_newer_version_of_the_same_subscription_counts(clock: FakeClock) -> None:
    """A Java client pulls by its newest version, and is refused while its heartbeats' is not known."""
    table = GroupTable(clock)
    for version in (1, 2):
        table.greet("a", 1)
        table.consume("a", Consumer("g", {"t": Subscription("t", version=version)}))
        assert table.consumer_groups()["g"].subscriptions["t"].version == version


def test_a_higher_version_takes_the_group_over(groups: Groups) -> None:
    groups.joins("old", "paid", 0)
    groups.fetched("g", "old", [("t", 0)])
    assert groups.joins("new", "*", 1), "the old member is told"
    assert groups.members("g") == ["new"]
    assert groups.owners("g") == {}
    groups.fetched("g", "old", [("t", 0)])
    assert groups.owners("g") == {}
    for do in (lambda: groups.check_in_force("g", "old"), lambda: groups.joins("old", "paid", 0)):
        with pytest.raises(SubscriptionMismatch, match="version 1 is in force: member new subscribes to t") as caught:
            do()
        assert caught.value.in_force == 1
    groups.check_in_force("g", "new")
    groups.check_in_force("g", "unknown")
    assert set(groups.connections("g")) == {"connection of old", "connection of new"}, "both hear of changes"
    assert not groups.joins("new", "*", 1)


def test_equal_versions_must_subscribe_alike(groups: Groups) -> None:
    groups.joins("a", "paid", 3)
    groups.joins("b", "paid", 3)
    with pytest.raises(SubscriptionMismatch) as caught:
        groups.joins("c", "*", 3)
    assert caught.value.in_force is None
    assert groups.members("g") == ["a", "b"]


@pytest.mark.parametrize(("first", "second"), [(None, 1), (1, None), (None, None)])
def test_members_without_a_version_must_subscribe_alike(groups: Groups, first: int | None, second: int | None) -> None:
    groups.joins("a", "paid", first)
    with pytest.raises(SubscriptionMismatch):
        groups.joins("b", "*", second)
    assert groups.joins("c", "paid", second)
    assert groups.members("g") == ["a", "c"]


def test_a_version_is_in_force_as_long_as_a_member_has_it(groups: Groups, clock: FakeClock) -> None:
    groups.joins("bad", "*", 2)
    groups.joins("worse", "*", 2)
    with pytest.raises(SubscriptionMismatch):
        groups.joins("good", "paid", 1)
    groups.stop_consuming("bad", "g")
    groups.connection_closed("connection of worse")
    clock.advance(GRACE_SECONDS - 0.1)
    groups.expire()
    with pytest.raises(SubscriptionMismatch):
        groups.joins("good", "paid", 1)
    clock.advance(0.2)
    groups.expire()
    assert groups.joins("good", "paid", 1)
