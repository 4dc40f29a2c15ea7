"""Members (ours): name servers keep the names of all brokers that were ever there, as entries of their configuration.

RocketMQ's own commands read and change them; so do its tools.
"""

from __future__ import annotations

from typing import Final

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route import DeleteKeyValue, GetKeyValues, PutKeyValue
from raymq.actors.wire.told import listed, number_in, reader, text, told_in

#: The namespace of the entries; each key is a broker's name.
NAMESPACE: Final = "RAYMQ_BROKERS"


def members_command() -> Command:
    """Which brokers were ever there? MessageNotFound: none, as far as that name server knows."""
    return GetKeyValues(NAMESPACE).command()


@reader
def read_members(answer: Command) -> list[str]:
    """The answer to `members_command`."""
    return listed(list(told_in(answer)["table"]), text)


def member_command(broker: str) -> Command:
    """The broker is there."""
    return PutKeyValue(NAMESPACE, broker, "known").command()


def not_member_command(broker: str) -> Command:
    """The broker is gone for good. May be repeated."""
    return DeleteKeyValue(NAMESPACE, broker).command()


def age_command() -> Command:
    """How long is the name server there?"""
    return Command(RequestCode.STATUS)


@reader
def read_age(answer: Command) -> int | None:
    """The answer to `age_command`, in seconds; None from one of an earlier version."""
    return number_in(answer, "seconds") if "seconds" in answer.fields else None
