"""Test that the histories of the register's contract catch keepers with deliberate bugs."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from raymq.actors.keeper.acceptor import Acceptor
from raymq.actors.keeper.keeper_record import KeeperRecord
from tests.contract.test_register import KeeperHarness, run_clients_and_check
from tests.unit.actors.keeper.in_memory_keepers import InMemoryKeepers

SEEDS = 300


class ForgetsPromises(Acceptor):
    """Forget promises at a restart, but keep accepted values."""

    def __init__(self, record: KeeperRecord, *arguments: Any, **named: Any) -> None:
        slots = {key: replace(slot, promised=slot.accepted, moves=False) for key, slot in record.slots.items()}
        super().__init__(replace(record, slots=slots), *arguments, **named)


class VotesAfterLosingFile(Acceptor):
    """Vote as before after the keeper has lost its file."""

    def __init__(self, record: KeeperRecord, *arguments: Any, **named: Any) -> None:
        super().__init__(replace(record, slots={}), *arguments, **named)


class AnswersBeforeItSaves(Acceptor):
    """Answer without saving: the file stays as it was."""

    def _save(self, record: KeeperRecord) -> bool:
        self.record = record
        return True


class RestartingHarness(KeeperHarness):
    """Restart keepers of the given class again and again."""

    def __init__(self, seed: int, kind: type[Acceptor]) -> None:
        self.keepers = InMemoryKeepers(3, seed, kind)

    def disturb(self, chance: random.Random) -> None:
        self.keepers.loss = chance.choice([0.0, 0.1, 0.3])
        for number in chance.sample([1, 2, 3], chance.randrange(3)):
            self.keepers.start(number)


def run_histories(kind: type[Acceptor], seeds: range) -> None:
    for seed in seeds:
        asyncio.run(run_clients_and_check(RestartingHarness(seed, kind), seed, calls=20))


@pytest.mark.parametrize("kind", [ForgetsPromises, VotesAfterLosingFile, AnswersBeforeItSaves])
def test_histories_catch_forgetful_keepers(kind: type[Acceptor]) -> None:
    with pytest.raises(AssertionError):
        run_histories(kind, range(SEEDS))


def test_histories_accept_correct_keepers() -> None:
    run_histories(Acceptor, range(20))
