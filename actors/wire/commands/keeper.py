"""What is asked of a keeper. The bodies of a question and of its answer are the keepers' own (`actors.keeper`).

Beside it travels one number each way: `saves`, how often the keeper had changed its file when it answered, and `seen`,
the greatest such number that the asker has been told by it. A keeper that has fewer was given an older copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.headers.route import GetKeyValues
from raymq.actors.wire.told import number, reader, text, told_in

#: The namespace of name servers' entries that say where keepers listen; each key is a keeper's number.
KEEPERS: Final = "RAYMQ_KEEPERS"
#: The one that says, as JSON, where the register is if it is not on keepers; its only key.
REGISTER: Final = "RAYMQ_REGISTER"


@dataclass(frozen=True, slots=True)
class KeeperStatus:
    """A keeper's own account of itself.

    Attributes:
        number, incarnation: which keeper it is; the latter is "" without a file.
        state: the value of a `KeeperState`.
        set_number, members: the newest set of keepers that it knows, incarnations by numbers.
    """

    number: int
    incarnation: str
    state: str
    pid: int
    set_number: int
    members: Mapping[int, str]


def keepers_command() -> Command:
    """Where do the keepers listen? To a name server. MessageNotFound: the cluster has none."""
    return GetKeyValues(KEEPERS).command()


@reader
def read_keepers(answer: Command) -> dict[int, str]:
    """The answer to `keepers_command`: addresses by numbers."""
    return {number(each): text(address) for each, address in told_in(answer)["table"].items()}


def ask_keeper_command(body: bytes, seen: int) -> Command:
    """ASK_KEEPER."""
    return Command(RequestCode.ASK_KEEPER, {"seen": seen}, body, serialization=Serialization.MSGPACK)


def keeper_status_command() -> Command:
    """KEEPER_STATUS."""
    return Command(RequestCode.KEEPER_STATUS, serialization=Serialization.MSGPACK)


@reader
def read_seen(request: Command) -> int:
    """The number beside a question; ProtocolError."""
    return number(request.fields["seen"])


def keeper_answer(request: Command, body: bytes, saves: int) -> Command:
    """The answer to ASK_KEEPER."""
    return request.response(ResponseCode.SUCCESS, {"saves": saves}, body=body)


@reader
def read_saves(answer: Command) -> int:
    """The number beside an answer; ProtocolError."""
    return number(answer.fields["saves"])


def keeper_status_answer(request: Command, status: KeeperStatus) -> Command:
    """The answer to KEEPER_STATUS."""
    fields = {
        "number": status.number,
        "incarnation": status.incarnation,
        "state": status.state,
        "pid": status.pid,
        "set": status.set_number,
        "numbers": list(status.members.keys()),
        "incarnations": list(status.members.values()),
    }
    return request.response(ResponseCode.SUCCESS, fields)


@reader
def read_keeper_status(answer: Command) -> KeeperStatus:
    """What a keeper answers to KEEPER_STATUS; ProtocolError."""
    told = answer.fields
    return KeeperStatus(
        number(told["number"]),
        text(told["incarnation"]),
        text(told["state"]),
        number(told["pid"]),
        number(told["set"]),
        dict(zip(map(number, told["numbers"]), map(text, told["incarnations"]), strict=True)),
    )
