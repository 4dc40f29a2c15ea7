"""The register's value of one broker group: its master, epoch and in-sync replicas.

It is a few hundred bytes that change a few times a day. All other data of a group is in the logs of its brokers.

    {"master": 1, "epoch": 7, "inSync": [1, 2], "setEpoch": 12, "lossEpoch": 0,
     "policy": {"mode": "sync", "minInSync": 2},
     "replicas": {"1": {"identity": "5f..", "address": "10.0.0.1:10911", "nonce": "91.."}, "2": {...}}}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from raymq.storage import typed_json
from raymq.storage.errors import InvalidInput

#: The most replicas that a group may have.
MAX_REPLICAS: Final = 16
#: An epoch is a Java int in RocketMQ's files and commands.
MAX_EPOCH: Final = (1 << 31) - 1
#: The greatest length of the JSON of one state, in bytes.
MAX_STATE_BYTES: Final = 16 << 10
#: The greatest length of an identity, an address or a nonce, in characters.
MAX_TEXT: Final = 255

_Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
_Epoch = Annotated[int, Meta(ge=0, le=MAX_EPOCH)]
_Number = Annotated[int, Meta(ge=1)]


class ReplicaRecord(Struct, frozen=True):
    """One replica as it is registered.

    Attributes:
        identity: a random text that was generated with the replica's directory; another directory has another one.
        address: "host:port" where its broker listens.
        nonce: a random text of its last start. Only the process that started with it counts as the replica.
    """

    identity: _Text
    address: _Text
    nonce: _Text


class ReplicationPolicy(Struct, frozen=True, rename="camel"):
    """The durability that a group guarantees for an acknowledged message.

    Attributes:
        mode: "async": the message is as safe as the master's own disk makes it, and replicas may lack it. "sync": every
            replica of the in-sync set has it as well.
        min_in_sync: with "sync", a group whose in-sync set is smaller than this accepts no messages.
    """

    mode: Annotated[str, Meta(pattern=r"^a?sync\Z")] = "async"
    min_in_sync: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)] = 1


class GroupState(Struct, frozen=True, rename="camel", tag_field="kind", tag="group"):
    """The register's value of one group, immutable.

    An invalid one raises InvalidInput when it is made.

    Attributes:
        master: the replica that may append; None while no master is elected.
        epoch: counts the elections. No two masters have the same epoch.
        in_sync: the replicas that have all confirmed records; the next master is one of them.
        set_epoch: counts the changes of `in_sync`.
        replicas: all replicas of the group by their numbers, which are 1 or above.
        loss_epoch: the epoch of the last election whose winner may lack confirmed records; 0: no such election.
    """

    master: int | None = None
    epoch: _Epoch = 0
    in_sync: frozenset[int] = frozenset()
    set_epoch: _Epoch = 0
    replicas: Annotated[Mapping[_Number, ReplicaRecord], Meta(max_length=MAX_REPLICAS)] = msgspec.field(
        default_factory=dict
    )
    policy: ReplicationPolicy = ReplicationPolicy()
    loss_epoch: _Epoch = 0

    def __post_init__(self) -> None:
        _check(self.loss_epoch <= self.epoch, "lossEpoch", f"0..{self.epoch}", self.loss_epoch)
        _check(self.in_sync <= self.replicas.keys(), "inSync", "replicas of the group", sorted(self.in_sync))
        _check(bool(self.in_sync) or not self.replicas, "inSync", "never empty", [])
        _check(self.master is None or self.master in self.in_sync, "master", "in sync", self.master)

    def start_election(self) -> GroupState:
        """Return the state without a master, in the next epoch.

        Every replica that receives this epoch refuses requests of the former master.
        """
        return replace(self, master=None, epoch=self.epoch + 1)

    def elected(self, master: int, in_sync: Collection[int], *, may_lack: bool = False) -> GroupState:
        """Return the state with this master, in the current epoch of the election.

        `may_lack`: the master may lack records that were confirmed.
        """
        return replace(
            self,
            master=master,
            in_sync=frozenset(in_sync) | {master},
            set_epoch=self.set_epoch + 1,
            loss_epoch=self.epoch if may_lack else self.loss_epoch,
        )

    def with_set(self, in_sync: Collection[int]) -> GroupState:
        """Return the state with another in-sync set."""
        return replace(self, in_sync=frozenset(in_sync), set_epoch=self.set_epoch + 1)

    def with_replica(self, number: int, record: ReplicaRecord) -> GroupState:
        """Return the state with a replica that is new or has restarted.

        The first replica of a group is the in-sync set.
        """
        replicas = {**self.replicas, number: record}
        in_sync = self.in_sync or frozenset({number})
        return replace(self, replicas=dict(sorted(replicas.items())), in_sync=in_sync)

    def without_replica(self, number: int) -> GroupState:
        """Return the state without a replica that is removed for good.

        The replica must be neither master nor in sync.
        """
        replicas = {each: record for each, record in self.replicas.items() if each != number}
        return replace(self, replicas=replicas)

    def encode(self) -> bytes:
        """Return the state as JSON on one line, at most `MAX_STATE_BYTES` long.

        Raise InvalidInput if the state is too long, or has a value out of its range.
        """
        encoded = typed_json.encode(self)
        GroupState.decode(encoded)
        return encoded

    @classmethod
    def decode(cls, encoded: bytes) -> GroupState:
        """Return the state in `encoded`; raise InvalidInput if it is too long or malformed."""
        _check(len(encoded) <= MAX_STATE_BYTES, "state", f"at most {MAX_STATE_BYTES} B of JSON", len(encoded))
        return typed_json.decode(encoded, cls, "state", "a group's state")


def _check(holds: bool, name: str, limit: str, actual: object) -> None:
    if not holds:
        raise InvalidInput(name, limit, actual)
