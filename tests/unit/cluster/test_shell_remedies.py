"""Test that the command line replaces Python calls in errors by its own commands."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from click import Group

from raymq.actors.errors import (
    NO_CLUSTER_HINT,
    BrokerUnavailable,
    TopicUnavailable,
    broker_not_found,
    group_not_found,
    queue_not_found,
    topic_not_found,
)
from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.send_plan import SendPlan
from raymq.cluster.cli import main_group
from raymq.cluster.log_format import TextLog
from raymq.cluster.shell_remedies import COMMANDS, in_shell_words


@pytest.mark.parametrize(
    ("error", "python", "shell"),
    [
        (topic_not_found("orders"), 'create it: Admin.create_topic("orders")', "`raymq topic create orders`"),
        (topic_not_found("a|b"), 'Admin.create_topic("a|b")', "`raymq topic create 'a|b'`"),
        (group_not_found("g"), "Admin.groups()", "`raymq group list`"),
        (queue_not_found(MessageQueue("t", "b", 7)), 'Admin.topic_stats("t")', "`raymq topic stats t`"),
        (broker_not_found("b", "the register"), "Admin.cluster_info()", "`raymq cluster status`"),
        (TopicUnavailable("t", ["broker-a"]), "Admin.cluster_info()", "`raymq cluster status`"),
    ],
)
def test_remedy_is_translated_to_shell_commands(error: Exception, python: str, shell: str) -> None:
    assert python in str(error)
    assert shell in in_shell_words(str(error))
    assert "Admin" not in in_shell_words(str(error))


def test_missing_cluster_hint_names_the_start_command() -> None:
    assert "cluster.start()" in NO_CLUSTER_HINT
    assert in_shell_words(NO_CLUSTER_HINT) == (
        "`raymq cluster start` starts a cluster; --name-servers names those of another one"
    )


def test_worker_log_uses_shell_commands() -> None:
    warning = logging.LogRecord("raymq.consumer", logging.WARNING, "", 1, str(topic_not_found("orders")), (), None)
    own = logging.LogRecord("shop", logging.WARNING, "", 1, 'Admin.create_topic("orders")', (), None)
    log = TextLog()
    assert "`raymq topic create orders`" in log.format(warning)
    assert log.format(own).endswith('shop: Admin.create_topic("orders")')


def test_other_text_stays_unchanged() -> None:
    for text in ("Administrator.x", "my_cluster.config", "topic Admin does not exist", "Admin.nonsense(1)"):
        assert in_shell_words(text) == text


def test_missing_retry_topic_has_no_remedy() -> None:
    assert topic_not_found("%RETRY%g").remedy == ""


@pytest.mark.parametrize("command", COMMANDS.values())
def test_each_named_command_exists(command: str) -> None:
    found = main_group
    for word in command.split()[1:]:
        assert isinstance(found, Group)
        found = found.get_command(None, word)  # type: ignore[arg-type, assignment]
        assert found is not None, command


def test_each_call_in_a_remedy_has_a_command() -> None:
    repository = Path(__file__).parents[3]
    named = set()
    for folder in ("actors", "client", "cluster", "storage", "spark_bridge"):
        for path in (repository / folder).rglob("*.py"):
            for text in re.findall(r"remedy ?= ?f?(\"[^\n]*)", path.read_text("utf-8")):
                named |= set(re.findall(r"(?:Admin|cluster)\.[a-z_]+", text))
    assert {call for call in named if in_shell_words(f"{call}()") == f"{call}()"} == {"cluster.connect"}


def test_send_error_has_its_remedy_once() -> None:
    plan = SendPlan(lambda: 0.0, timeout=3.0, retries=2)
    for _ in range(3):
        plan.failed(None, BrokerUnavailable("name server", "connection refused", remedy=NO_CLUSTER_HINT), 0.1)
    error = plan.outcome()
    assert error.remedy == NO_CLUSTER_HINT
    assert str(error).count(NO_CLUSTER_HINT) == 1
    assert [attempt.error for attempt in error.attempts] == ["name server: connection refused"] * 3
