"""The options of `format("raymq")`: text, as Spark hands it over, made into what the bridge's core takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from raymq.actors.protocol import MessageQueue, Tls
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.errors import InvalidInput
from raymq.client.task_connection import shared_connection
from raymq.spark_bridge.ranges import CheckedPosition, check_on_data_loss, check_position

#: How to reach the cluster.
_CLUSTER: Final = ("name_servers", "tls_ca_file", "tls_cert_file", "tls_key_file", "tls_check_host")
_READ: Final = (*_CLUSTER, "topic", "start", "end", "format", "tags", "filter", "tasks", "on_data_loss")
_STREAM: Final = (*(name for name in _READ if name != "end"), "max_offsets_per_batch")
_WRITE: Final = (*_CLUSTER, "topic")
_SINK: Final = (*_CLUSTER, "topic", "name")
#: Spark's own, which it hands to sources as well; `path` is what load() and save() are given, and start().
_OF_SPARK: Final = frozenset({"path", "checkpointlocation", "queryname"})

#: Of a read whose user does not say more: so many tasks, or fewer where there is little.
_TASKS: Final = 8
_MOST_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """How a process reaches the cluster. Picklable."""

    name_servers: tuple[str, ...]
    tls: Tls | None = None

    def connection(self) -> Connection:
        """The connection that this process shares."""
        return shared_connection(self.name_servers, self.tls)

    def as_options(self) -> dict[str, str]:
        """The options that say this."""
        options = {"name_servers": ",".join(self.name_servers)}
        if self.tls is not None:
            files = {name: getattr(self.tls, name) for name in ("ca_file", "cert_file", "key_file")}
            options |= {f"tls_{name}": file for name, file in files.items() if file is not None}
            options["tls_check_host"] = str(self.tls.check_host).lower()
        return options


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Of a bounded read.

    Attributes:
        tasks: about how many share it.
    """

    cluster: ClusterAddress
    topics: tuple[str, ...]
    start: CheckedPosition
    end: CheckedPosition
    format: str
    tags: str | None
    filter: str | None
    tasks: int
    skip_losses: bool = False


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Of a stream.

    Attributes:
        most: how many messages a batch looks at at most; None: all that are there.
        tasks: about how many share a batch.
    """

    cluster: ClusterAddress
    topics: tuple[str, ...]
    start: CheckedPosition
    format: str
    tags: str | None
    filter: str | None
    tasks: int
    most: int | None
    skip_losses: bool = False


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Of a write or a sink.

    Attributes:
        name: tells the sinks of one query into one topic apart.
    """

    cluster: ClusterAddress
    topic: str
    name: str = ""


def read_options(options: Mapping[str, str], defaults: Mapping[str, str]) -> ReadOptions:
    """What `spark.read` was told. `defaults` are those of the session.

    Raises:
        InvalidInput: an option is missing, unknown, or cannot be.
    """
    told = _told(options, defaults, _READ)
    return ReadOptions(
        _cluster(told),
        _topics(told),
        _position(told, "start", "earliest"),
        _position(told, "end", "latest"),
        told.get("format", "json"),
        told.get("tags"),
        told.get("filter"),
        _whole(told, "tasks", _TASKS),
        check_on_data_loss(told.get("on_data_loss", "error")),
    )


def stream_options(options: Mapping[str, str], defaults: Mapping[str, str]) -> StreamOptions:
    """What `spark.readStream` was told. Raises as `read_options`."""
    told = _told(options, defaults, _STREAM)
    return StreamOptions(
        _cluster(told),
        _topics(told),
        _position(told, "start", "latest"),
        told.get("format", "json"),
        told.get("tags"),
        told.get("filter"),
        _whole(told, "tasks", _TASKS),
        _whole(told, "max_offsets_per_batch", None),
        check_on_data_loss(told.get("on_data_loss", "error")),
    )


def write_options(options: Mapping[str, str], defaults: Mapping[str, str]) -> WriteOptions:
    """What `df.write` was told. Raises as `read_options`."""
    told = _told(options, defaults, _WRITE)
    return WriteOptions(_cluster(told), _topic(told))


def sink_options(options: Mapping[str, str], defaults: Mapping[str, str]) -> WriteOptions:
    """What `df.writeStream` was told. Raises as `read_options`."""
    told = _told(options, defaults, _SINK)
    name = told.get("name", "")
    if len(name) > _MOST_NAME:
        raise InvalidInput("name", f"at most {_MOST_NAME} characters", name)
    return WriteOptions(_cluster(told), _topic(told), name)


def _told(options: Mapping[str, str], defaults: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """The options by their names in small letters: Spark's do not mind case."""
    told = {name.lower(): value for name, value in options.items()}
    unknown = sorted(told.keys() - set(known) - _OF_SPARK)
    if unknown:
        raise InvalidInput("option", f"one of {', '.join(known)}", unknown[0])
    if "topic" not in told and "path" in told:
        told["topic"] = told["path"]
    return {name: value for name, value in defaults.items() if name in known} | told


def _cluster(told: Mapping[str, str]) -> ClusterAddress:
    addresses = _names("name_servers", told, "host:port of the cluster's name servers, with commas between them")
    ca_file, cert_file, key_file = (told.get(f"tls_{name}") for name in ("ca_file", "cert_file", "key_file"))
    if not {"tls_ca_file", "tls_cert_file", "tls_key_file", "tls_check_host"} & told.keys():
        return ClusterAddress(addresses)
    check_host = told.get("tls_check_host", "true").lower()
    if check_host not in {"true", "false"}:
        raise InvalidInput("tls_check_host", "true or false", check_host)
    return ClusterAddress(addresses, Tls(ca_file, cert_file, key_file, check_host=check_host == "true"))


def _topics(told: Mapping[str, str]) -> tuple[str, ...]:
    return _names("topic", told, "a topic, or several with commas between them")


def _topic(told: Mapping[str, str]) -> str:
    topics = _names("topic", told, "the topic to write to")
    if len(topics) != 1:
        raise InvalidInput("topic", "one topic to write to", ",".join(topics))
    return topics[0]


def _names(field: str, told: Mapping[str, str], allowed: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in told.get(field, "").split(","))
    if not all(names):
        raise InvalidInput(field, allowed, told.get(field))
    return names


def _whole(told: Mapping[str, str], field: str, default: Any) -> Any:
    value = told.get(field)
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        raise InvalidInput(field, "a whole number", value) from None
    return arguments.whole(field, number, 1, arguments.MOST_OFFSET)


def _position(told: Mapping[str, str], field: str, default: str) -> CheckedPosition:
    """Return a position of `SparkBridge.read`: times also as ISO 8601, offsets as JSON."""
    value = told.get(field, default)
    if value.lstrip().startswith("{"):
        return check_position(field, _places(field, value))
    for read in (float, datetime.fromisoformat):
        try:
            made = read(value)
        except ValueError:
            continue
        return check_position(field, made)
    return check_position(field, value)


def _places(field: str, value: str) -> dict[MessageQueue, int]:
    try:
        nested = json.loads(value)
        return {
            MessageQueue(topic, broker, int(queue_id)): offset
            for topic, brokers in nested.items()
            for broker, queues in brokers.items()
            for queue_id, offset in queues.items()
        }
    except (ValueError, AttributeError, TypeError):
        allowed = 'offsets as JSON: {"topic": {"broker": {"queue id": offset}}}'
        raise InvalidInput(field, allowed, value) from None
