"""Test the options of `format("raymq")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from raymq.actors.protocol import Tls
from raymq.client import InvalidInput, MessageQueue
from raymq.spark_bridge.spark4_source.source_options import (
    ClusterAddress,
    read_options,
    sink_options,
    stream_options,
    write_options,
)

Parse = Callable[[Mapping[str, str], Mapping[str, str]], Any]

SERVERS = {"name_servers": "127.0.0.1:9876"}
CLUSTER = ClusterAddress(("127.0.0.1:9876",))


def test_option_defaults_equal_defaults_of_the_bridge() -> None:
    read = read_options({"topic": "orders"}, SERVERS)
    assert (read.cluster, read.topics, read.start, read.end) == (CLUSTER, ("orders",), "earliest", "latest")
    assert (read.format, read.tags, read.filter) == ("json", None, None)
    stream = stream_options({"topic": "orders"}, SERVERS)
    assert (stream.topics, stream.start, stream.max_messages) == (("orders",), "latest", None)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("earliest", "earliest"),
        ("group:billing", "group:billing"),
        ("1700000000.5", 1_700_000_000.5),
        ('{"orders": {"broker-a": {"0": 5, "1": 0}}}', {("broker-a", 0): 5, ("broker-a", 1): 0}),
    ],
)
def test_position_is_text_seconds_or_offsets(text: str, meant: Any) -> None:
    if isinstance(meant, dict):
        meant = {MessageQueue("orders", *queue): offset for queue, offset in meant.items()}
    assert read_options({"topic": "orders", "start": text}, SERVERS).start == meant


def test_option_names_ignore_case_and_override_session() -> None:
    parsed = read_options({"TOPIC": "a, b", "Name_Servers": "one:1,two:2", "Tasks": "3"}, {**SERVERS, "tasks": "8"})
    assert parsed.topics == ("a", "b")
    assert parsed.cluster.name_servers == ("one:1", "two:2")
    assert parsed.tasks == 3


def test_path_option_is_the_topic() -> None:
    assert read_options({"path": "orders"}, SERVERS).topics == ("orders",)
    assert write_options({"path": "orders"}, SERVERS).topic == "orders"
    assert sink_options({"topic": "a", "path": "b", "checkpointLocation": "/c", "name": "n"}, SERVERS).topic == "a"


@pytest.mark.parametrize("parse", [read_options, stream_options, write_options, sink_options])
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "topic"),
        ({"topic": ""}, "topic"),
        ({"topic": "orders", "strat": "earliest"}, "option"),
        ({"topic": "orders", "name_servers": ""}, "name_servers"),
        ({"topic": "orders", "tls_check_host": "maybe"}, "tls_check_host"),
    ],
)
def test_invalid_option_is_named_in_the_error(parse: Parse, options: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse(options, SERVERS)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("parse", "options", "field"),
    [
        (read_options, {"start": "soon"}, "start"),
        (read_options, {"end": "{"}, "end"),
        (read_options, {"end": '{"orders": 5}'}, "end"),
        (read_options, {"start": '{"orders": {"broker-a": {"0": -1}}}'}, "start.offset"),
        (read_options, {"tasks": "0"}, "tasks"),
        (read_options, {"max_offsets_per_batch": "10"}, "option"),
        (stream_options, {"max_offsets_per_batch": "some"}, "max_offsets_per_batch"),
        (stream_options, {"end": "latest"}, "option"),
        (write_options, {"start": "latest"}, "option"),
        (write_options, {"topic": "a,b"}, "topic"),
        (write_options, {"name": "left"}, "option"),
        (sink_options, {"name": "x" * 65}, "name"),
    ],
)
def test_options_of_another_use_are_refused(parse: Parse, options: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse({"topic": "orders", **options}, SERVERS)
    assert raised.value.field == field


def test_cluster_address_survives_conversion_to_options() -> None:
    for cluster in (
        CLUSTER,
        ClusterAddress(("a:1", "b:2"), Tls("ca", "cert", "key", check_host=False)),
        ClusterAddress(("a:1",), Tls()),
    ):
        assert read_options({"topic": "orders"}, cluster.as_options()).cluster == cluster
