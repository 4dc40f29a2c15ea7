"""Keepers that forget: the histories of the register's contract show it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from raymq.actors.keeper.acceptor import Acceptor
from raymq.actors.keeper.keeper_record import KeeperRecord
from tests.contract.test_register import KeeperHarness, play
from tests.unit.actors.keeper.keepers_at_hand import KeepersAtHand

SEEDS = 300


class ForgetsPromises(Acceptor):
    """A promise is gone with a restart; what was accepted is not."""

    def __init__(self, record: KeeperRecord, *arguments: Any, **named: Any) -> None:
        slots = {key: replace(slot, promised=slot.accepted, moves=False) for key, slot in record.slots.items()}
        super().__init__(replace(record, slots=slots), *arguments, **named)


class VotesEmptied(Acceptor):
    """A keeper that lost its file is taken for the one it was."""

    def __init__(self, record: KeeperRecord, *arguments: Any, **named: Any) -> None:
        super().__init__(replace(record, slots={}), *arguments, **named)


class AnswersBeforeItSaves(Acceptor):
    """What it answers is not on disk: the file stays as it was."""

    def _save(self, record: KeeperRecord) -> bool:
        self.record = record
        return True


class RestartingHarness(KeeperHarness):
    """Keepers of some kind, which are restarted again and again."""

    def __init__(self, seed: int, kind: type[Acceptor]) -> None:
        self.keepers = KeepersAtHand(3, seed, kind)

    def disturb(self, chance: random.Random) -> None:
        self.keepers.loss = chance.choice([0.0, 0.1, 0.3])
        for number in chance.sample([1, 2, 3], chance.randrange(3)):
            self.keepers.start(number)


def histories(kind: type[Acceptor], seeds: range) -> None:
    for seed in seeds:
        asyncio.run(play(RestartingHarness(seed, kind), seed, calls=20))


@pytest.mark.parametrize("kind", [ForgetsPromises, VotesEmptied, AnswersBeforeItSaves])
def test_a_keeper_that_forgets_is_caught(kind: type[Acceptor]) -> None:
    with pytest.raises(AssertionError):
        histories(kind, range(SEEDS))


def test_keepers_that_forget_nothing_are_not() -> None:
    histories(Acceptor, range(20))
