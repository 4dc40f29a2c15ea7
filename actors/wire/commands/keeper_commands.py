"""Requests to a keeper; the bodies have the keepers' own format (`actors.keeper`).

Each request and answer has one number besides its body. In an answer it is `saves`: how often the keeper had changed
its file at that time. In a request it is `seen`: the greatest such number that the client has received from this
keeper. A keeper with a lower count was given an older copy of its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.headers.route_headers import GetKeyValues
from raymq.actors.wire.response_validation import number, protocol_checked, read_json_answer, text

#: The namespace of name servers' entries with the keepers' addresses; each key is a keeper's number.
KEEPERS: Final = "RAYMQ_KEEPERS"
#: The namespace of the only entry with the register's location, as JSON, if the register is not on keepers.
REGISTER: Final = "RAYMQ_REGISTER"


@dataclass(frozen=True, slots=True)
class KeeperStatus:
    """The status that a keeper reports.

    Attributes:
        number, incarnation: the keeper's identity; `incarnation` is "" without a file.
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
    """Return a request to a name server for the keepers' addresses.

    The answer is MessageNotFound if the cluster has no keepers.
    """
    return GetKeyValues(KEEPERS).command()


@protocol_checked
def read_keepers(answer: Command) -> dict[int, str]:
    """Return the addresses by keeper number from the answer to `keepers_command`."""
    return {number(each): text(address) for each, address in read_json_answer(answer)["table"].items()}


def ask_keeper_command(body: bytes, seen: int) -> Command:
    """Return ASK_KEEPER."""
    return Command(RequestCode.ASK_KEEPER, {"seen": seen}, body, serialization=Serialization.MSGPACK)


def keeper_status_command() -> Command:
    """Return KEEPER_STATUS."""
    return Command(RequestCode.KEEPER_STATUS, serialization=Serialization.MSGPACK)


@protocol_checked
def read_seen(request: Command) -> int:
    """Return the number `seen` of a request; raise ProtocolError if it is invalid."""
    return number(request.fields["seen"])


def keeper_answer(request: Command, body: bytes, saves: int) -> Command:
    """Return the answer to ASK_KEEPER."""
    return request.response(ResponseCode.SUCCESS, {"saves": saves}, body=body)


@protocol_checked
def read_saves(answer: Command) -> int:
    """Return the number `saves` of an answer; raise ProtocolError if it is invalid."""
    return number(answer.fields["saves"])


def keeper_status_answer(request: Command, status: KeeperStatus) -> Command:
    """Return the answer to KEEPER_STATUS."""
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


@protocol_checked
def read_keeper_status(answer: Command) -> KeeperStatus:
    """Return the status in an answer to KEEPER_STATUS; raise ProtocolError if it is invalid."""
    fields = answer.fields
    return KeeperStatus(
        number(fields["number"]),
        text(fields["incarnation"]),
        text(fields["state"]),
        number(fields["pid"]),
        number(fields["set"]),
        dict(zip(map(number, fields["numbers"]), map(text, fields["incarnations"]), strict=True)),
    )
