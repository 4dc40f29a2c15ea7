"""Known brokers (ours): the names of all brokers that exist or have existed.

Name servers keep them as entries of their configuration. RocketMQ's own commands, and so its tools, read and change
them.
"""

from __future__ import annotations

from typing import Final

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route_headers import DeleteKeyValue, GetKeyValues, PutKeyValue
from raymq.actors.wire.response_validation import protocol_checked, read_json_answer, read_list, read_number_field, text

#: The namespace of the entries; each key is a broker's name.
BROKERS_NAMESPACE: Final = "RAYMQ_BROKERS"


def known_brokers_command() -> Command:
    """Return a request for the names of all known brokers.

    The answer is MessageNotFound if the name server knows of none.
    """
    return GetKeyValues(BROKERS_NAMESPACE).command()


@protocol_checked
def read_known_brokers(answer: Command) -> list[str]:
    """Return the broker names in an answer to `known_brokers_command`."""
    return read_list(list(read_json_answer(answer)["table"]), text)


def add_broker_command(broker: str) -> Command:
    """Return a request that adds a broker to the known ones."""
    return PutKeyValue(BROKERS_NAMESPACE, broker, "known").command()


def delete_broker_command(broker: str) -> Command:
    """Return a request that removes a broker from the known ones. Repeatable."""
    return DeleteKeyValue(BROKERS_NAMESPACE, broker).command()


def uptime_command() -> Command:
    """Return a request for the time since the name server's start."""
    return Command(RequestCode.STATUS)


@protocol_checked
def read_uptime(answer: Command) -> int | None:
    """Return the uptime in seconds from the answer to `uptime_command`.

    It is None from a name server of an earlier version.
    """
    return read_number_field(answer, "seconds") if "seconds" in answer.fields else None
