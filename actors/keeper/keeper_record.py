"""The state that a keeper persists, and the interface of its file.

{"cluster": "c1", "number": 2, "incarnation": "8a..", "keepers": {...},
 "slots": {"broker-a": {"promised": [7, 12], "moves": false, "accepted": [7, 12], "entry": {...}}}, "saves": 17}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from raymq.actors.keeper.keeper_messages import NO_BALLOT, NOTHING, Ballot, Registered
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.storage import typed_json


@dataclass(frozen=True, slots=True)
class Slot:
    """The promised ballot and the accepted value of one key.

    Attributes:
        moves: whether the promise is for a change of the master; if so, no lease is given until a value is accepted.
    """

    promised: Ballot = NO_BALLOT
    moves: bool = False
    accepted: Ballot = NO_BALLOT
    entry: Registered = NOTHING


@dataclass(frozen=True, slots=True)
class KeeperRecord:
    """The state of one keeper, immutable.

    Attributes:
        number: the keeper's number in the set.
        incarnation: a random text that was generated with the file.
        keepers: the newest set that this keeper has accepted; number 0 before it has accepted any.
        saves: counts the changes of this record. A client sends the greatest count that the keeper has reported to it;
            a keeper whose own count is lower has an older copy of its file.
    """

    cluster: str
    number: int
    incarnation: str
    keepers: KeeperSet = field(default_factory=KeeperSet)
    slots: Mapping[str, Slot] = field(default_factory=dict)
    saves: int = 0

    def with_slot(self, key: str, slot: Slot) -> KeeperRecord:
        """Return the record with this slot for `key`, and one more save."""
        keepers = slot.entry.value if isinstance(slot.entry.value, KeeperSet) else self.keepers
        slots = {**self.slots, key: slot}
        return KeeperRecord(self.cluster, self.number, self.incarnation, keepers, slots, self.saves + 1)

    def encode(self) -> bytes:
        """Return the record as JSON on one line."""
        return typed_json.encode(self)

    @classmethod
    def decode(cls, encoded: bytes) -> KeeperRecord:
        """Return the record that `encode` wrote; raise InvalidInput for any other form."""
        names = typed_json.decode(encoded, dict[str, msgspec.Raw], "keeper's file", "a keeper's record")
        if "keys" in names and "slots" not in names:
            encoded = _converted(encoded)
        return typed_json.decode(encoded, cls, "keeper's file", "a keeper's record")


def _converted(encoded: bytes) -> bytes:
    """Convert a record of the former form, whose slots are "keys"."""
    record = typed_json.decode(encoded, _FormerRecord, "keeper's file", "a keeper's record")
    for slot in record.keys.values():
        entry = slot["entry"]
        if entry.get("value"):
            entry["value"] |= {"kind": entry.get("kind", "")}
    content = msgspec.structs.asdict(record)
    return msgspec.json.encode(content | {"slots": content.pop("keys")})


class _FormerRecord(msgspec.Struct):
    cluster: str
    number: int
    incarnation: str
    saves: int
    keepers: dict[str, Any]
    keys: dict[str, dict[str, dict[str, Any] | Any]]


class KeeperFile(Protocol):
    """The storage of a keeper's record. Used by one thread."""

    def save(self, record: KeeperRecord) -> None:
        """Replace the saved record by this one.

        It survives a loss of power once this returns.

        Raises:
            StoreFull: not saved; the former record stays.
            StoreFailed: the former record stays, or this one is in the file and may not survive.
        """
