"""The command line says in its own commands what errors say by Python's names."""

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
from raymq.cluster import cli_worker
from raymq.cluster.cli import main_group
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
def test_a_remedy_is_in_the_callers_language(error: Exception, python: str, shell: str) -> None:
    assert python in str(error)
    assert shell in in_shell_words(str(error))
    assert "Admin" not in in_shell_words(str(error))


def test_no_answer_names_how_to_start_a_cluster() -> None:
    assert "cluster.start()" in NO_CLUSTER_HINT
    assert in_shell_words(NO_CLUSTER_HINT) == (
        "`raymq cluster start` starts a cluster; --name-servers names those of another one"
    )


def test_a_worker_logs_in_the_shells_words() -> None:
    warning = logging.LogRecord("raymq.consumer", logging.WARNING, "", 1, str(topic_not_found("orders")), (), None)
    own = logging.LogRecord("shop", logging.WARNING, "", 1, 'Admin.create_topic("orders")', (), None)
    log = cli_worker.WorkerLog("%(message)s")
    assert "`raymq topic create orders`" in log.format(warning)
    assert log.format(own) == 'Admin.create_topic("orders")'


def test_text_of_users_stays_as_it_is() -> None:
    for text in ("Administrator.x", "my_cluster.config", "topic Admin does not exist", "Admin.nonsense(1)"):
        assert in_shell_words(text) == text


def test_topics_of_groups_are_not_to_be_created() -> None:
    assert topic_not_found("%RETRY%g").remedy == ""


@pytest.mark.parametrize("command", COMMANDS.values())
def test_each_command_that_is_named_exists(command: str) -> None:
    found = main_group
    for word in command.split()[1:]:
        assert isinstance(found, Group)
        found = found.get_command(None, word)  # type: ignore[arg-type, assignment]
        assert found is not None, command


def test_each_call_that_an_error_names_has_a_command() -> None:
    repository = Path(__file__).parents[3]
    named = set()
    for room in ("actors", "client", "cluster", "storage", "spark_bridge"):
        for path in (repository / room).rglob("*.py"):
            for text in re.findall(r"remedy ?= ?f?(\"[^\n]*)", path.read_text("utf-8")):
                named |= set(re.findall(r"(?:Admin|cluster)\.[a-z_]+", text))
    assert {call for call in named if in_shell_words(f"{call}()") == f"{call}()"} == {"cluster.connect"}


def test_a_send_says_its_remedy_once() -> None:
    plan = SendPlan(lambda: 0.0, timeout=3.0, retries=2)
    for _ in range(3):
        plan.failed(None, BrokerUnavailable("name server", "connection refused", remedy=NO_CLUSTER_HINT), 0.1)
    error = plan.outcome()
    assert error.remedy == NO_CLUSTER_HINT
    assert str(error).count(NO_CLUSTER_HINT) == 1
    assert [attempt.error for attempt in error.attempts] == ["name server: connection refused"] * 3
