"""The register's value of one broker group: its master, epoch and in-sync replicas.

It is a few hundred bytes that change a few times a day. All other data of a group is in the logs of its brokers.

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

#: The most replicas that a group may have.
MAX_REPLICAS: Final = 16
#: An epoch is a Java int in RocketMQ's files and commands.
MAX_EPOCH: Final = (1 << 31) - 1
#: The greatest length of the JSON of one state, in bytes.
MAX_STATE_BYTES: Final = 16 << 10
#: The greatest length of an identity, an address or a nonce, in characters.
MAX_TEXT: Final = 255
MODES: Final = ("async", "sync")


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """One replica as it is registered.

    Attributes:
        identity: a random text that was generated with the replica's directory; another directory has another one.
        address: "host:port" where its broker listens.
        nonce: a random text of its last start. Only the process that started with it counts as the replica.
    """

    identity: str
    address: str
    nonce: str


@dataclass(frozen=True, slots=True)
class ReplicationPolicy:
    """The durability that a group guarantees for an acknowledged message.

    Attributes:
        mode: "async": the message is as safe as the master's own disk makes it, and replicas may lack it. "sync": every
            replica of the in-sync set has it as well.
        min_in_sync: with "sync", a group whose in-sync set is smaller than this accepts no messages.
    """

    mode: str = "async"
    min_in_sync: int = 1


@dataclass(frozen=True, slots=True)
class GroupState:
    """The register's value of one group, immutable.

    Attributes:
        master: the replica that may append; None while no master is elected.
        epoch: counts the elections. No two masters have the same epoch.
        in_sync: the replicas that have all confirmed records; the next master is one of them.
        set_epoch: counts the changes of `in_sync`.
        replicas: all replicas of the group by their numbers, which are 1 or above.
        loss_epoch: the epoch of the last election whose winner may lack confirmed records; 0: no such election.
    """

    master: int | None = None
    epoch: int = 0
    in_sync: frozenset[int] = frozenset()
    set_epoch: int = 0
    replicas: Mapping[int, ReplicaRecord] = field(default_factory=dict)
    policy: ReplicationPolicy = ReplicationPolicy()
    loss_epoch: int = 0

    def start_election(self) -> GroupState:
        """Return the state without a master, in the next epoch.

        Every replica that receives this epoch refuses requests of the former master.
        """
        return dataclasses.replace(self, master=None, epoch=self.epoch + 1)

    def elected(self, master: int, in_sync: Collection[int], *, may_lack: bool = False) -> GroupState:
        """Return the state with this master, in the current epoch of the election.

        `may_lack`: the master may lack records that were confirmed.
        """
        return dataclasses.replace(
            self,
            master=master,
            in_sync=frozenset(in_sync) | {master},
            set_epoch=self.set_epoch + 1,
            loss_epoch=self.epoch if may_lack else self.loss_epoch,
        )

    def with_set(self, in_sync: Collection[int]) -> GroupState:
        """Return the state with another in-sync set."""
        return dataclasses.replace(self, in_sync=frozenset(in_sync), set_epoch=self.set_epoch + 1)

    def with_replica(self, number: int, record: ReplicaRecord) -> GroupState:
        """Return the state with a replica that is new or has restarted.

        The first replica of a group is the in-sync set.
        """
        replicas = {**self.replicas, number: record}
        in_sync = self.in_sync or frozenset({number})
        return dataclasses.replace(self, replicas=dict(sorted(replicas.items())), in_sync=in_sync)

    def without_replica(self, number: int) -> GroupState:
        """Return the state without a replica that is removed for good.

        The replica must be neither master nor in sync.
        """
        replicas = {each: record for each, record in self.replicas.items() if each != number}
        return dataclasses.replace(self, replicas=replicas)

    def validate(self) -> None:
        """Raise InvalidInput unless the state is valid.

        Raises:
            InvalidInput: the state breaks a rule, which the error names.
        """
        _check(0 <= self.epoch <= MAX_EPOCH, "epoch", f"0..{MAX_EPOCH}", self.epoch)
        _check(0 <= self.set_epoch <= MAX_EPOCH, "setEpoch", f"0..{MAX_EPOCH}", self.set_epoch)
        _check(0 <= self.loss_epoch <= self.epoch, "lossEpoch", f"0..{self.epoch}", self.loss_epoch)
        _check(len(self.replicas) <= MAX_REPLICAS, "replicas", f"at most {MAX_REPLICAS}", len(self.replicas))
        _check(all(each >= 1 for each in self.replicas), "replicas", "numbers from 1 on", list(self.replicas))
        _check(self.in_sync <= self.replicas.keys(), "inSync", "replicas of the group", sorted(self.in_sync))
        _check(bool(self.in_sync) or not self.replicas, "inSync", "never empty", [])
        _check(self.master is None or self.master in self.in_sync, "master", "in sync", self.master)
        _check(self.policy.mode in MODES, "policy.mode", f"one of {MODES}", self.policy.mode)
        _check(1 <= self.policy.min_in_sync <= MAX_REPLICAS, "policy.minInSync", "1..16", self.policy.min_in_sync)
        for record in self.replicas.values():
            for text in (record.identity, record.address, record.nonce):
                _check(0 < len(text) <= MAX_TEXT, "replicas", f"texts of 1..{MAX_TEXT} characters", text)

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values."""
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
        """Return the state as JSON on one line, at most `MAX_STATE_BYTES` long.

        Raise InvalidInput if the state is invalid or too long.
        """
        self.validate()
        encoded = json.dumps(self.to_json(), separators=(",", ":")).encode()
        _check(len(encoded) <= MAX_STATE_BYTES, "state", f"at most {MAX_STATE_BYTES} B of JSON", len(encoded))
        return encoded

    @classmethod
    def from_json(cls, raw: object) -> GroupState:
        """Return the state that `to_json` encoded; raise InvalidInput for any other form."""
        try:
            if not isinstance(raw, dict):
                raise TypeError("not an object")
            state = cls(
                master=None if raw["master"] is None else _whole(raw["master"]),
                epoch=_whole(raw["epoch"]),
                in_sync=frozenset(_whole(each) for each in raw["inSync"]),
                set_epoch=_whole(raw["setEpoch"]),
                loss_epoch=_whole(raw.get("lossEpoch", 0)),  # RayMQ 0.1 did not write it
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
        state.validate()
        return state

    @classmethod
    def decode(cls, encoded: bytes) -> GroupState:
        """Return the state in `encoded`; raise InvalidInput if it is too long or malformed."""
        _check(len(encoded) <= MAX_STATE_BYTES, "state", f"at most {MAX_STATE_BYTES} B", len(encoded))
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
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
