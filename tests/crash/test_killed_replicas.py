"""Kill processes of groups at steps of claims, truncations, copies and promotions.

After each kill no acknowledged message is lost, the group serves again, and the replica returns by itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count

import pytest

from raymq.actors.keeper.errors import RegisterHeld
from raymq.actors.keeper.keeper_file import DurableKeeperFile
from raymq.actors.keeper.keeper_messages import Ballot
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.commands.append_commands import read_append_answer
from raymq.storage.failpoints import NAMES
from raymq.storage.journal.journal_files import snapshot_path
from raymq.storage.store_paths import StorePaths
from tests.polling import poll_until
from tests.replica_clients import Clients, are_alike, expire_beginning, records, request_replica
from tests.replica_group import ReplicaGroup
from tests.store_replication import log_content

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

#: Only a replica that replaces its log by the master's reaches these failpoints.
WIPE_POINTS = tuple(name for name in NAMES if name.startswith("wipe."))


#: These run every time; the others only in the soak run.
ALWAYS_RUN = (
    "truncation.after_order",
    "truncation.before_done",
    "leader.before_epoch",
    "leader.before_open",
    "leader.before_tables",
    "leader.before_serving",
)


def with_soak_marks(*names: str) -> list[object]:
    return [name if name in ALWAYS_RUN else pytest.param(name, marks=pytest.mark.soak) for name in names]


def failpoints_of(what: str) -> tuple[str, ...]:
    return tuple(name for name in NAMES if name.startswith(f"{what}."))


class AcknowledgedMessages:
    """A growing set of acknowledged messages."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._numbers = count()
        self.bodies: set[bytes] = set()

    def more(self) -> None:
        bodies = [b"m%d" % next(self._numbers) for _ in range(5)]
        self._clients.send(*bodies)
        self.bodies.update(bodies)

    def check(self) -> None:
        """Wait until consumers see all messages; the last ones become visible once all in-sync replicas have them."""
        poll_until(lambda: set(self._clients.bodies()) >= self.bodies, 20)
        assert set(self._clients.bodies()) == self.bodies


@pytest.fixture
def sent(clients: Clients) -> Iterator[AcknowledgedMessages]:
    """Start with two replicas in sync; check at the end that all acknowledged messages are there."""
    made = AcknowledgedMessages(clients)
    made.more()
    yield made
    made.more()
    made.check()


def rejoin(group: ReplicaGroup, number: int, sent: AcknowledgedMessages) -> None:
    """Send without the replica, start it, and wait until it is in sync with everything."""
    sent.more()
    group.start(number)
    group.await_in_sync(1, 2)
    poll_until(lambda: are_alike(group), 20)


@pytest.mark.long
def test_former_master_killed_in_its_claim_rejoins(group: ReplicaGroup, sent: AcknowledgedMessages) -> None:
    for failpoint in failpoints_of("claim"):
        former = group.state.master
        assert former is not None
        group.kill(former)
        group.start_until_crash(former, failpoint)
        assert group.elect(asked=[3 - former]) == 3 - former
        rejoin(group, former, sent)


@pytest.mark.parametrize("group", [{"lease_seconds": 600.0}], indirect=True)
def test_killed_master_is_replaced_before_its_lease_ends(group: ReplicaGroup, sent: AcknowledgedMessages) -> None:
    """The next process of the master proves its death; no acknowledged message is lost."""
    for _ in range(2):
        before = group.state
        assert before.master is not None
        sent.more()
        group.kill(before.master)
        with pytest.raises(RegisterHeld):
            group.run(group.register.change(group.name, group.read(), group.state.start_election()))
        group.start(before.master)
        group.elect()
        sent.check()
        group.await_in_sync(1, 2)
        assert group.state.epoch > before.epoch


@pytest.mark.parametrize("group", [{"lease_seconds": 600.0}], indirect=True)
def test_copied_directory_does_not_end_lease_of_live_master(group: ReplicaGroup, sent: AcknowledgedMessages) -> None:
    """The copy has all that the directory has, and the paused master does not answer it."""
    before = group.state
    group.pause(1)
    copy = group.folder / "copy"
    shutil.copytree(group.directory(1), copy, ignore=shutil.ignore_patterns("lock"))
    with group.started(group.spec(1, directory=str(copy), host="127.0.0.2")) as other:
        try:
            assert group.address_of(other)
            seen = {promised_ballot(group)}
            poll_until(lambda: seen.add(promised_ballot(group)) or len(seen) > 3, 30)  # it has tried to claim
            with pytest.raises(RegisterHeld):
                group.run(group.register.change(group.name, group.read(), group.state.start_election()))
        finally:
            other.kill()
            other.communicate()
    group.go_on(1)
    sent.more()
    assert (group.state.master, group.state.epoch) == (1, before.epoch)


def promised_ballot(group: ReplicaGroup) -> Ballot:
    record = DurableKeeperFile(group.keepers.file_of(1)).load()
    assert record is not None
    return record.slots[group.name].promised


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("group", [{"mode": "async"}], indirect=True)
@pytest.mark.parametrize(
    "failpoint", with_soak_marks(*failpoints_of("truncation"), "recovery.before_cut", "recovery.between_cuts")
)
def test_former_master_killed_in_truncation_rejoins(
    group: ReplicaGroup, sent: AcknowledgedMessages, failpoint: str
) -> None:
    group.await_end(2, of=1)
    group.kill(2)
    tail = request_replica(group, 1, records(30, mark=b"tail"))  # async acknowledges messages that only the master has
    assert read_append_answer(tail, 30)[0] is SendStatus.SEND_OK
    group.kill(1)
    group.start(2)
    group.await_claimed(2)
    assert group.elect() == 2
    sent.more()
    group.start_until_crash(1, failpoint)
    rejoin(group, 1, sent)
    assert b"tail" not in b"".join(log_content(group.directory(1)).values())


def kill_and_lose_state(group: ReplicaGroup, number: int) -> None:
    """Damage a killed replica's newest events: the next start takes a copy."""
    group.kill(number)
    snapshot_path(StorePaths(group.directory(number)).state_journal, 1 << 20).write_bytes(b"damaged")


@pytest.mark.long
def test_replica_killed_in_copy_rejoins(group: ReplicaGroup, sent: AcknowledgedMessages) -> None:
    for failpoint in failpoints_of("copy"):
        kill_and_lose_state(group, 2)
        group.start_until_crash(2, failpoint)
        rejoin(group, 2, sent)
    assert group.elect(2) == 2


@pytest.mark.long
def test_empty_replica_killed_in_log_wipe_rejoins(group: ReplicaGroup, clients: Clients) -> None:
    """The beginning of the master's log was deleted, and the replica is empty."""
    clients.send(*(b"%d" % number * 30_000 for number in range(10, 60)))
    expire_beginning(group)
    expected = clients.bodies()
    for number, failpoint in enumerate(WIPE_POINTS):
        group.kill(2)
        group.await_in_sync(1)
        group.wipe(2)
        group.start_until_crash(2, failpoint)
        clients.send(b"more %d" % number)
        group.start(2)
        group.await_in_sync(1, 2)
        poll_until(lambda: are_alike(group), 20)
    group.kill(1)
    group.wipe(1)
    assert group.elect() == 2
    assert set(clients.bodies()) == {*expected, *(b"more %d" % number for number in range(len(WIPE_POINTS)))}


@pytest.mark.parametrize("group", [{"replicas": 3}], indirect=True)
@pytest.mark.parametrize("failpoint", with_soak_marks(*failpoints_of("leader")))
@pytest.mark.long
def test_master_killed_in_promotion_is_replaced_and_rejoins(
    group: ReplicaGroup, sent: AcknowledgedMessages, failpoint: str
) -> None:
    """Another replica replaces it; later it is elected again, as the only replica left.

    test_promotion_kill.py kills it at each change of its files.
    """
    group.tell(2, f"kill failpoint {failpoint}")
    group.kill(1)
    group.elect_without_wait(2)
    group.await_crash(2)
    assert group.elect(asked=[3]) == 3
    sent.more()
    group.start(1, 2)
    group.await_in_sync(1, 2, 3)
    group.tell(2, f"kill failpoint {failpoint}")
    group.kill(3)
    group.elect_without_wait(2)
    group.await_crash(2)
    group.kill(1)
    group.start(2)
    group.await_claimed(2)
    assert group.elect() == 2
    sent.more()
    group.start(1, 3)
    group.await_in_sync(1, 2, 3)
    poll_until(lambda: are_alike(group), 20)
