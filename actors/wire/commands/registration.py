"""How a broker tells a name server of itself and of its topics: registrations and heartbeats."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from raymq.actors.protocol import QueueData
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route import QueryDataVersion, RegisterBroker
from raymq.storage.files.json_file import DataVersion


def topics_json(topics: Mapping[str, QueueData]) -> bytes:
    """Some topics of a broker, for `register_command`."""
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
    """REGISTER_BROKER with all topics of a broker, or what became of them since the header's `raymq_since`.

    Args:
        topics: each a part of them, from `topics_json`.
    """
    table = b",".join([part[1:-1] for part in topics if part != b"{}"])
    body = (
        b'{"topicConfigSerializeWrapper":{"dataVersion":%b,"topicConfigTable":{%b}},"filterServerList":[],'
        b'"raymqDeleted":%b}'
    ) % (json.dumps(version.to_json()).encode(), table, json.dumps(sorted(deleted)).encode())
    return header.command(body)


def heartbeat_command(header: QueryDataVersion, version: DataVersion) -> Command:
    """QUERY_DATA_VERSION: a broker lives, and has this version of its topics."""
    return header.command(json.dumps(version.to_json()).encode())


def must_register(answer: Command) -> bool:
    """Whether a name server's answer to one of these two asks for all topics."""
    return answer.fields.get("changed") == "true"
