"""Test that the guide's index for users of other systems names existing methods and commands."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from raymq import client
from raymq.cluster.cli import main_group
from raymq.cluster.shell_remedies import COMMANDS

INDEX = (Path(__file__).parents[2] / "docs" / "guide.md").read_text("utf-8").partition("## Coming from")[2]
RAYMQ_FOLDER = [line.split("|")[2] for line in INDEX.splitlines() if line.startswith("| ") and "| here |" not in line]


def test_each_method_of_the_index_exists() -> None:
    named = re.findall(r"`(Producer|PushConsumer|SimpleConsumer|PullConsumer|Admin)\.([a-z_]+)", " ".join(RAYMQ_FOLDER))
    assert len(named) >= 20
    assert [(kind, name) for kind, name in named if not hasattr(getattr(client, kind), name)] == []


def test_each_argument_of_the_index_exists() -> None:
    named = re.findall(r"`(Producer|PushConsumer|Message)\(([a-z_]+)=", " ".join(RAYMQ_FOLDER))
    assert len(named) > 5
    known = {kind: inspect.signature(getattr(client, kind)).parameters for kind, _ in named}
    assert [(kind, name) for kind, name in named if name not in known[kind]] == []


def test_each_command_of_the_index_exists() -> None:
    named = set(re.findall(r"`raymq ([a-z]+) ([a-z]+)", " ".join(RAYMQ_FOLDER)))
    known = {(group, name) for group, found in main_group.commands.items() for name in getattr(found, "commands", ())}
    assert named - known == set()
    assert {tuple(command.split()[1:3]) for command in COMMANDS.values()} - known == set()
