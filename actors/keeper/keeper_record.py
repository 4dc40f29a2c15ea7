"""All that a keeper knows, as it stands in its file, and the seam behind which the file is.

{"cluster": "c1", "number": 2, "incarnation": "8a..", "saves": 17, "keepers": {...},
 "keys": {"broker-a": {"promised": [7, 12], "moves": false, "accepted": [7, 12], "entry": {...}}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.message_json import ballot_from, registered_from, registered_json
from raymq.actors.keeper.messages import NO_BALLOT, NOTHING, Ballot, Registered
from raymq.storage.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Slot:
    """What a keeper has promised and accepted for one key.

    Attributes:
        moves: whether the promise is for a change of the master; until a value is accepted no lease is given.
    """

    promised: Ballot = NO_BALLOT
    moves: bool = False
    accepted: Ballot = NO_BALLOT
    entry: Registered = NOTHING


@dataclass(frozen=True, slots=True)
class KeeperRecord:
    """A keeper's memory, made anew for each change.

    Attributes:
        number: the keeper's number in the set.
        incarnation: a random text that the file was made with.
        keepers: the newest set that this keeper has accepted; of number 0 before it was told of any.
        saves: counts the changes of this record. Who asks a keeper says the greatest count that it has told him: one
            that has fewer has been given an older copy of its file.
    """

    cluster: str
    number: int
    incarnation: str
    keepers: KeeperSet = field(default_factory=KeeperSet)
    slots: Mapping[str, Slot] = field(default_factory=dict)
    saves: int = 0

    def with_slot(self, key: str, slot: Slot) -> KeeperRecord:
        """With this for one key."""
        keepers = slot.entry.value if isinstance(slot.entry.value, KeeperSet) else self.keepers
        slots = {**self.slots, key: slot}
        return KeeperRecord(self.cluster, self.number, self.incarnation, keepers, slots, self.saves + 1)

    def encode(self) -> bytes:
        """The record as JSON of one line."""
        told: dict[str, Any] = {
            "cluster": self.cluster,
            "number": self.number,
            "incarnation": self.incarnation,
            "saves": self.saves,
            "keepers": self.keepers.to_json(),
            "keys": {
                key: {
                    "promised": slot.promised,
                    "moves": slot.moves,
                    "accepted": slot.accepted,
                    "entry": registered_json(slot.entry),
                }
                for key, slot in self.slots.items()
            },
        }
        return json.dumps(told, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, encoded: bytes) -> KeeperRecord:
        """What `encode` made; InvalidInput if it is of another form."""
        try:
            raw = json.loads(encoded)
            keepers = raw["keepers"]
            slots = {
                str(key): Slot(
                    ballot_from(each["promised"]),
                    bool(each["moves"]),
                    ballot_from(each["accepted"]),
                    registered_from(each["entry"]),
                )
                for key, each in raw["keys"].items()
            }
            known = KeeperSet.from_json(keepers) if keepers["members"] else KeeperSet()
            return cls(
                str(raw["cluster"]), int(raw["number"]), str(raw["incarnation"]), known, slots, int(raw["saves"])
            )
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            raise InvalidInput("keeper's file", "a keeper's record", f"{error!r}") from error


class KeeperFile(Protocol):
    """Where a keeper's record lies. One thread."""

    def save(self, record: KeeperRecord) -> None:
        """Keep the record in place of the one before; it survives a loss of power when this returns.

        Raises:
            StoreFull: not kept; the one before stays.
            StoreFailed: the one before stays, or this one is there and may not survive.
        """
