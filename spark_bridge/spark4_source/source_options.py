"""Parse and check the options of `format("raymq")`, which Spark passes as text."""

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
from raymq.spark_bridge.offset_ranges import CheckedPosition, check_on_data_loss, check_position

#: The options that address the cluster.
_CLUSTER: Final = ("name_servers", "tls_ca_file", "tls_cert_file", "tls_key_file", "tls_check_host")
_READ: Final = (*_CLUSTER, "topic", "start", "end", "format", "tags", "filter", "tasks", "on_data_loss")
_STREAM: Final = (*(name for name in _READ if name != "end"), "max_offsets_per_batch")
_WRITE: Final = (*_CLUSTER, "topic")
_SINK: Final = (*_CLUSTER, "topic", "name")
#: Spark's own options, which it passes to sources as well; `path` is the argument of load(), save() and start().
_OF_SPARK: Final = frozenset({"path", "checkpointlocation", "queryname"})

#: The default number of tasks of a read; there are fewer if there are few messages.
_TASKS: Final = 8
_MAX_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The addresses of a cluster's name servers, and TLS. Picklable."""

    name_servers: tuple[str, ...]
    tls: Tls | None = None

    def connection(self) -> Connection:
        """Return the connection that this process shares."""
        return shared_connection(self.name_servers, self.tls)

    def as_options(self) -> dict[str, str]:
        """Return this address as options."""
        options = {"name_servers": ",".join(self.name_servers)}
        if self.tls is not None:
            files = {name: getattr(self.tls, name) for name in ("ca_file", "cert_file", "key_file")}
            options |= {f"tls_{name}": file for name, file in files.items() if file is not None}
            options["tls_check_host"] = str(self.tls.check_host).lower()
        return options


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a bounded read.

    Attributes:
        tasks: the approximate number of tasks that share the read.
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
    """The options of a stream.

    Attributes:
        max_messages: the largest number of messages that a batch processes; None: all available ones.
        tasks: the approximate number of tasks that share a batch.
    """

    cluster: ClusterAddress
    topics: tuple[str, ...]
    start: CheckedPosition
    format: str
    tags: str | None
    filter: str | None
    tasks: int
    max_messages: int | None
    skip_losses: bool = False


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write or a sink.

    Attributes:
        name: distinguishes the sinks of one query that write into one topic.
    """

    cluster: ClusterAddress
    topic: str
    name: str = ""


def read_options(options: Mapping[str, str], defaults: Mapping[str, str]) -> ReadOptions:
    """Parse the options of `spark.read`; `defaults` are those of the session.

    Raises:
        InvalidInput: an option is missing, unknown or invalid.
    """
    merged = _merged_options(options, defaults, _READ)
    return ReadOptions(
        _cluster(merged),
        _topics(merged),
        _position(merged, "start", "earliest"),
        _position(merged, "end", "latest"),
        merged.get("format", "json"),
        merged.get("tags"),
        merged.get("filter"),
        _whole(merged, "tasks", _TASKS),
        check_on_data_loss(merged.get("on_data_loss", "error")),
    )


def stream_options(options: Mapping[str, str], defaults: Mapping[str, str]) -> StreamOptions:
    """Parse the options of `spark.readStream`. Raises as `read_options`."""
    merged = _merged_options(options, defaults, _STREAM)
    return StreamOptions(
        _cluster(merged),
        _topics(merged),
        _position(merged, "start", "latest"),
        merged.get("format", "json"),
        merged.get("tags"),
        merged.get("filter"),
        _whole(merged, "tasks", _TASKS),
        _whole(merged, "max_offsets_per_batch", None),
        check_on_data_loss(merged.get("on_data_loss", "error")),
    )


def write_options(options: Mapping[str, str], defaults: Mapping[str, str]) -> WriteOptions:
    """Parse the options of `df.write`. Raises as `read_options`."""
    merged = _merged_options(options, defaults, _WRITE)
    return WriteOptions(_cluster(merged), _topic(merged))


def sink_options(options: Mapping[str, str], defaults: Mapping[str, str]) -> WriteOptions:
    """Parse the options of `df.writeStream`. Raises as `read_options`."""
    merged = _merged_options(options, defaults, _SINK)
    name = merged.get("name", "")
    if len(name) > _MAX_NAME:
        raise InvalidInput("name", f"at most {_MAX_NAME} characters", name)
    return WriteOptions(_cluster(merged), _topic(merged), name)


def _merged_options(options: Mapping[str, str], defaults: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """Return the options, and the defaults for missing ones, by lower-case names.

    Spark's option names are case-insensitive.
    """
    merged = {name.lower(): value for name, value in options.items()}
    unknown = sorted(merged.keys() - set(known) - _OF_SPARK)
    if unknown:
        raise InvalidInput("option", f"one of {', '.join(known)}", unknown[0])
    if "topic" not in merged and "path" in merged:
        merged["topic"] = merged["path"]
    return {name: value for name, value in defaults.items() if name in known} | merged


def _cluster(merged: Mapping[str, str]) -> ClusterAddress:
    addresses = _names("name_servers", merged, "host:port of the cluster's name servers, with commas between them")
    ca_file, cert_file, key_file = (merged.get(f"tls_{name}") for name in ("ca_file", "cert_file", "key_file"))
    if not {"tls_ca_file", "tls_cert_file", "tls_key_file", "tls_check_host"} & merged.keys():
        return ClusterAddress(addresses)
    check_host = merged.get("tls_check_host", "true").lower()
    if check_host not in {"true", "false"}:
        raise InvalidInput("tls_check_host", "true or false", check_host)
    return ClusterAddress(addresses, Tls(ca_file, cert_file, key_file, check_host=check_host == "true"))


def _topics(merged: Mapping[str, str]) -> tuple[str, ...]:
    return _names("topic", merged, "a topic, or several with commas between them")


def _topic(merged: Mapping[str, str]) -> str:
    topics = _names("topic", merged, "the topic to write to")
    if len(topics) != 1:
        raise InvalidInput("topic", "one topic to write to", ",".join(topics))
    return topics[0]


def _names(field: str, merged: Mapping[str, str], allowed: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in merged.get(field, "").split(","))
    if not all(names):
        raise InvalidInput(field, allowed, merged.get(field))
    return names


def _whole(merged: Mapping[str, str], field: str, default: Any) -> Any:
    value = merged.get(field)
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        raise InvalidInput(field, "a whole number", value) from None
    return arguments.whole(field, number, 1, arguments.MAX_OFFSET)


def _position(merged: Mapping[str, str], field: str, default: str) -> CheckedPosition:
    """Return a position of `SparkBridge.read`: times also as ISO 8601, offsets as JSON."""
    value = merged.get(field, default)
    if value.lstrip().startswith("{"):
        return check_position(field, _places(field, value))
    for read in (float, datetime.fromisoformat):
        try:
            position = read(value)
        except ValueError:
            continue
        return check_position(field, position)
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
