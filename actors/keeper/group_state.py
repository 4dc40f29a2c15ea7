"""What the keepers hold of one broker group: who is master, in which epoch, and which replicas are in sync.

A few hundred bytes that change a few times a day. All else of a group is in its brokers' logs.

    {"master": 1, "epoch": 7, "inSync": [1, 2], "setEpoch": 12, "lossEpoch": 0,
     "policy": {"mode": "sync", "minInSync": 2},
     "replicas": {"1": {"identity": "5f..", "address": "10.0.0.1:10911", "nonce": "91.."}, "2": {...}}}
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from raymq.storage.errors import InvalidInput

#: So many replicas a group may have.
MOST_REPLICAS: Final = 16
#: An epoch is a Java int in RocketMQ's files and commands.
MOST_EPOCH: Final = (1 << 31) - 1
#: The JSON of one state is never longer, in bytes.
MOST_STATE_BYTES: Final = 16 << 10
#: An identity, an address and a nonce are never longer, in characters.
MOST_TEXT: Final = 255
MODES: Final = ("async", "sync")


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """One replica as it is registered.

    Attributes:
        identity: a random text that its directory was made with; another directory has another one.
        address: "host:port" where its broker listens.
        nonce: a random text of its last start. Only the process that started with it speaks for the replica.
    """

    identity: str
    address: str
    nonce: str


@dataclass(frozen=True, slots=True)
class ReplicationPolicy:
    """What a group promises of an acknowledged message.

    Attributes:
        mode: "async": it is as safe as the master's own disk makes it. "sync": every replica in sync has it, too.
        min_in_sync: with "sync", fewer replicas in sync than this take no message.
    """

    mode: str = "async"
    min_in_sync: int = 1


@dataclass(frozen=True, slots=True)
class GroupState:
    """The register's value of one group. Made anew for each change; never changed.

    Attributes:
        master: the replica that may append, None while none is elected.
        epoch: counts the elections. No two masters have the same one.
        in_sync: the replicas that have everything that is confirmed; the next master is one of them.
        set_epoch: counts the changes of `in_sync`.
        replicas: all of the group, by their numbers, which are 1 or above.
        loss_epoch: of the last election whose winner may lack what was confirmed, and seen; 0: there was none.
    """

    master: int | None = None
    epoch: int = 0
    in_sync: frozenset[int] = frozenset()
    set_epoch: int = 0
    replicas: Mapping[int, ReplicaRecord] = field(default_factory=dict)
    policy: ReplicationPolicy = ReplicationPolicy()
    loss_epoch: int = 0

    def electing(self) -> GroupState:
        """Without a master, in the next epoch: what all who are told of it refuse the former master from."""
        return dataclasses.replace(self, master=None, epoch=self.epoch + 1)

    def elected(self, master: int, in_sync: Collection[int], *, may_lack: bool = False) -> GroupState:
        """With this master, in the epoch of the election; `may_lack`: it may not have all that was confirmed."""
        return dataclasses.replace(
            self,
            master=master,
            in_sync=frozenset(in_sync) | {master},
            set_epoch=self.set_epoch + 1,
            loss_epoch=self.epoch if may_lack else self.loss_epoch,
        )

    def with_set(self, in_sync: Collection[int]) -> GroupState:
        """With another set of replicas in sync."""
        return dataclasses.replace(self, in_sync=frozenset(in_sync), set_epoch=self.set_epoch + 1)

    def with_replica(self, number: int, record: ReplicaRecord) -> GroupState:
        """With a replica that is new, or has started anew. The first one of a group is in sync with itself."""
        replicas = {**self.replicas, number: record}
        in_sync = self.in_sync or frozenset({number})
        return dataclasses.replace(self, replicas=dict(sorted(replicas.items())), in_sync=in_sync)

    def without_replica(self, number: int) -> GroupState:
        """Without a replica that is gone for good; it must be neither master nor in sync."""
        replicas = {each: record for each, record in self.replicas.items() if each != number}
        return dataclasses.replace(self, replicas=replicas)

    def validate(self) -> None:
        """Check everything that a state has to be, whoever made it.

        Raises:
            InvalidInput: it is not; what is wrong is named.
        """
        _check(0 <= self.epoch <= MOST_EPOCH, "epoch", f"0..{MOST_EPOCH}", self.epoch)
        _check(0 <= self.set_epoch <= MOST_EPOCH, "setEpoch", f"0..{MOST_EPOCH}", self.set_epoch)
        _check(0 <= self.loss_epoch <= self.epoch, "lossEpoch", f"0..{self.epoch}", self.loss_epoch)
        _check(len(self.replicas) <= MOST_REPLICAS, "replicas", f"at most {MOST_REPLICAS}", len(self.replicas))
        _check(all(each >= 1 for each in self.replicas), "replicas", "numbers from 1 on", list(self.replicas))
        _check(self.in_sync <= self.replicas.keys(), "inSync", "replicas of the group", sorted(self.in_sync))
        _check(bool(self.in_sync) or not self.replicas, "inSync", "never empty", [])
        _check(self.master is None or self.master in self.in_sync, "master", "in sync", self.master)
        _check(self.policy.mode in MODES, "policy.mode", f"one of {MODES}", self.policy.mode)
        _check(1 <= self.policy.min_in_sync <= MOST_REPLICAS, "policy.minInSync", "1..16", self.policy.min_in_sync)
        for record in self.replicas.values():
            for text in (record.identity, record.address, record.nonce):
                _check(0 < len(text) <= MOST_TEXT, "replicas", f"texts of 1..{MOST_TEXT} characters", text)

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {
            "master": self.master,
            "epoch": self.epoch,
            "inSync": sorted(self.in_sync),
            "setEpoch": self.set_epoch,
            "lossEpoch": self.loss_epoch,
            "policy": {"mode": self.policy.mode, "minInSync": self.policy.min_in_sync},
            "replicas": {str(number): dataclasses.asdict(record) for number, record in self.replicas.items()},
        }

    def encode(self) -> bytes:
        """The state as JSON of one line, at most `MOST_STATE_BYTES` long; InvalidInput if it is none."""
        self.validate()
        encoded = json.dumps(self.to_json(), separators=(",", ":")).encode()
        _check(len(encoded) <= MOST_STATE_BYTES, "state", f"at most {MOST_STATE_BYTES} B of JSON", len(encoded))
        return encoded

    @classmethod
    def from_json(cls, raw: object) -> GroupState:
        """The state that `to_json` made; InvalidInput if it is of another form."""
        try:
            if not isinstance(raw, dict):
                raise TypeError("not an object")
            made = cls(
                master=None if raw["master"] is None else _whole(raw["master"]),
                epoch=_whole(raw["epoch"]),
                in_sync=frozenset(_whole(each) for each in raw["inSync"]),
                set_epoch=_whole(raw["setEpoch"]),
                loss_epoch=_whole(raw.get("lossEpoch", 0)),  # RayMQ 0.1 had none
                replicas={
                    int(number): ReplicaRecord(
                        _text(record["identity"]), _text(record["address"]), _text(record["nonce"])
                    )
                    for number, record in raw["replicas"].items()
                },
                policy=ReplicationPolicy(_text(raw["policy"]["mode"]), _whole(raw["policy"]["minInSync"])),
            )
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise InvalidInput("state", "a group's state", f"{error!r}") from error
        made.validate()
        return made

    @classmethod
    def decode(cls, encoded: bytes) -> GroupState:
        """The state in `encoded`; InvalidInput if it is too long or of another form."""
        _check(len(encoded) <= MOST_STATE_BYTES, "state", f"at most {MOST_STATE_BYTES} B", len(encoded))
        try:
            raw = json.loads(encoded)
        except (ValueError, RecursionError) as error:
            raise InvalidInput("state", "JSON", f"{error!r}") from error
        return cls.from_json(raw)


def _check(holds: bool, name: str, limit: str, actual: object) -> None:
    if not holds:
        raise InvalidInput(name, limit, actual)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
