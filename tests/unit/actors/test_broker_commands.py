"""Test that each command of a broker declares what it does."""

from __future__ import annotations

from typing import Any, cast

import pytest

from raymq.actors.broker.acks import LocalAcks
from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.handlers.broker_command import BrokerCommand, CommandKind, Commands
from raymq.actors.broker.handlers.handler_registry import all_commands
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.stepwise_handlers import OrderedHandlers
from tests.unit.actors.bench import Bench

#: What a request code begins with that changes something.
CHANGING = ("UPDATE", "DELETE", "CLEAN", "FORGET", "SET_", "RESUME", "REDRIVE", "REMEMBER", "CLONE", "END_TRANSACTION")
#: Codes that only look like changes.
READING = {RequestCode.DELETED_DEAD_LETTERS}


@pytest.fixture
def commands(bench: Bench) -> Commands:
    fields = dict.fromkeys(BrokerContext.__dataclass_fields__, cast("Any", None)) | {
        "core": bench.core,
        "acks": LocalAcks(bench.core.store),
        "in_order": OrderedHandlers(),
    }
    return all_commands(BrokerContext(**fields))


def test_each_command_declares_its_kind(commands: Commands) -> None:
    assert len(commands) > 80
    undeclared = [RequestCode(code).name for code, each in commands.items() if type(each) is not BrokerCommand]
    assert undeclared == [], "declare them with reads, appends, changes ... where they are registered"


def test_command_that_changes_something_does_not_read(commands: Commands) -> None:
    reading = (CommandKind.READS, CommandKind.READS_CONFIRMED)
    found = [RequestCode(code) for code, each in commands.items() if each.kind in reading]
    assert [code.name for code in found if code.name.startswith(CHANGING) and code not in READING] == []


def test_appends_are_the_commands_that_store_messages(commands: Commands) -> None:
    found = {RequestCode(code).name for code, each in commands.items() if each.kind is CommandKind.APPENDS}
    assert found == {
        *("SEND_MESSAGE", "SEND_MESSAGE_V2", "SEND_BATCH_MESSAGE"),
        *("APPEND_RECORDS", "APPEND_ONE", "APPEND_ONE_SEQUENCED"),
    }
