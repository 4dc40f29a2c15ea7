"""The options of `format("raymq")`, as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from raymq.actors.protocol import Tls
from raymq.client import InvalidInput, MessageQueue
from raymq.spark_bridge.source.source_options import (
    ClusterAddress,
    read_options,
    sink_options,
    stream_options,
    write_options,
)

Parse = Callable[[Mapping[str, str], Mapping[str, str]], Any]

SERVERS = {"name_servers": "127.0.0.1:9876"}
CLUSTER = ClusterAddress(("127.0.0.1:9876",))


def test_what_is_not_said_is_as_in_the_bridges_own_calls() -> None:
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
def test_a_position_is_text_seconds_or_offsets(text: str, meant: Any) -> None:
    if isinstance(meant, dict):
        meant = {MessageQueue("orders", *queue): offset for queue, offset in meant.items()}
    assert read_options({"topic": "orders", "start": text}, SERVERS).start == meant


def test_names_mind_no_case_and_the_users_word_counts() -> None:
    told = read_options({"TOPIC": "a, b", "Name_Servers": "one:1,two:2", "Tasks": "3"}, {**SERVERS, "tasks": "8"})
    assert told.topics == ("a", "b")
    assert told.cluster.name_servers == ("one:1", "two:2")
    assert told.tasks == 3


def test_what_load_save_and_start_are_given_is_the_topic() -> None:
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
def test_what_cannot_be_is_refused_by_its_name(parse: Parse, options: dict[str, str], field: str) -> None:
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
def test_each_use_has_options_of_its_own(parse: Parse, options: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse({"topic": "orders", **options}, SERVERS)
    assert raised.value.field == field


def test_how_a_session_reaches_its_cluster_goes_through_options_and_back() -> None:
    for cluster in (
        CLUSTER,
        ClusterAddress(("a:1", "b:2"), Tls("ca", "cert", "key", check_host=False)),
        ClusterAddress(("a:1",), Tls()),
    ):
        assert read_options({"topic": "orders"}, cluster.as_options()).cluster == cluster
