"""A broker's registrations and heartbeats at a name server."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from raymq.actors.protocol import QueueData
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route_headers import QueryDataVersion, RegisterBroker
from raymq.storage.files.json_file import DataVersion


def topics_json(topics: Mapping[str, QueueData]) -> bytes:
    """Return some topics of a broker as JSON, for `register_command`."""
    table = {
        name: {
            "topicName": name,
            "readQueueNums": data.read_queues,
            "writeQueueNums": data.write_queues,
            "perm": data.perm,
        }
        for name, data in topics.items()
    }
    return json.dumps(table, separators=(",", ":")).encode()


def register_command(
    header: RegisterBroker, version: DataVersion, topics: Iterable[bytes], deleted: Collection[str] = ()
) -> Command:
    """Return REGISTER_BROKER with the topics of a broker.

    They are all topics, or those that changed or were deleted since the header's `raymq_since`.

    Args:
        topics: parts of the topics, each from `topics_json`.
    """
    table = b",".join([part[1:-1] for part in topics if part != b"{}"])
    body = (
        b'{"topicConfigSerializeWrapper":{"dataVersion":%b,"topicConfigTable":{%b}},"filterServerList":[],'
        b'"raymqDeleted":%b}'
    ) % (json.dumps(version.to_json()).encode(), table, json.dumps(sorted(deleted)).encode())
    return header.command(body)


def heartbeat_command(header: QueryDataVersion, version: DataVersion) -> Command:
    """Return QUERY_DATA_VERSION: a heartbeat with the version of the broker's topics."""
    return header.command(json.dumps(version.to_json()).encode())


def must_register(answer: Command) -> bool:
    """Return True if a name server's answer to one of these two requests all topics."""
    return answer.fields.get("changed") == "true"
