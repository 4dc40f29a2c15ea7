"""Provide in-memory keepers: real acceptors behind a transport that loses requests, answers and keepers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

from raymq.actors.keeper.acceptor import Acceptor
from raymq.actors.keeper.group_state import GroupState, ReplicaRecord, ReplicationPolicy
from raymq.actors.keeper.keeper_codec import decode_answer, decode_call, encode_answer, encode_call
from raymq.actors.keeper.keeper_messages import KeeperCall
from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.keeper.proposal import Answers
from raymq.storage.errors import StoreFailed
from tests.unit.actors.clock import FakeClock


class MemoryFile:
    """Hold the record of a keeper, which outlives the keeper."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.fails = False

    def save(self, record: KeeperRecord) -> None:
        if self.fails:
            raise StoreFailed("fsync failed")
        self.content = record.encode()

    def load(self) -> KeeperRecord | None:
        return None if self.content is None else KeeperRecord.decode(self.content)


class InMemoryKeepers:
    """Run a cluster of keepers, and act as the transport to it."""

    def __init__(self, count: int = 3, seed: int = 0, acceptor: type[Acceptor] = Acceptor) -> None:
        self.clock = FakeClock()
        self.random = random.Random(seed)
        self.acceptor = acceptor
        members = {number: KeeperMember(f"k{number}", f"made-{number}") for number in range(1, count + 1)}
        self.founded = KeeperSet(1, members)
        self.files: dict[int, MemoryFile] = {}
        self.up: dict[int, Acceptor] = {}
        for number, member in members.items():
            self.make(number, KeeperRecord("c", number, member.incarnation, self.founded), just_founded=True)
        #: The share of requests, and of answers, that get lost.
        self.loss = 0.0
        #: Keepers that are not reached.
        self.cut: set[int] = set()

    def make(self, number: int, record: KeeperRecord, *, just_founded: bool = False) -> None:
        self.files[number] = MemoryFile()
        self.files[number].save(record)
        self.start(number, just_founded=just_founded)

    def start(self, number: int, *, just_founded: bool = False) -> None:
        """Start or restart a keeper with the record in its file."""
        file = self.files[number]
        self.up[number] = self.acceptor(file.load(), file, self.clock, just_founded=just_founded)

    def empty(self, number: int) -> None:
        """Replace a keeper's disk by an empty one, and start the keeper."""
        self.files[number] = MemoryFile()
        self.start(number)

    def register(self, keepers: KeeperSet | None = None) -> KeeperRegister:
        return KeeperRegister(keepers or self.founded, self, self.random.randrange)

    async def ask(
        self, keepers: KeeperSet, asked: Mapping[int, KeeperCall], is_enough: Callable[[Answers], bool]
    ) -> Answers:
        answers: Answers = {}
        order = list(asked)
        self.random.shuffle(order)
        for number in order:
            await asyncio.sleep(0)
            if number in self.cut or number not in self.up or self.random.random() < self.loss:
                continue
            answer = decode_answer(encode_answer(self.up[number].handle(decode_call(encode_call(asked[number])))))
            if self.random.random() < self.loss:
                continue
            answers = {**answers, number: answer}
            # Requests that were sent already arrive all the same.
            if is_enough(answers) and self.random.random() < 0.5:
                break
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)
        return answers

    async def pause(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await asyncio.sleep(0)


def replica(number: int, nonce: str = "n") -> ReplicaRecord:
    return ReplicaRecord(f"dir-{number}", f"10.0.0.{number}:10911", f"{nonce}{number}")


def group(count: int = 2, mode: str = "sync", min_in_sync: int = 1) -> GroupState:
    """Return a group with replicas 1 to `count`, all in sync, without a master."""
    replicas = {number: replica(number) for number in range(1, count + 1)}
    return GroupState(in_sync=frozenset(replicas), replicas=replicas, policy=ReplicationPolicy(mode, min_in_sync))


def group_with_master(master: int = 1, epoch: int = 1, count: int = 2) -> GroupState:
    state = group(count)
    for _ in range(epoch):
        state = state.start_election()
    return state.elected(master, state.in_sync)
