"""Run the examples of docs/reference/commands.md as they are written."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from raymq.client import Admin, Connection, PullConsumer
from raymq.cluster.cli import main_group
from tests.integration.conftest import Services

pytestmark = pytest.mark.integration

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "commands.md"


def examples() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [line.removeprefix("$ raymq ") for block in blocks for line in block.splitlines()]


def test_examples_of_the_reference_work(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raymq.client.admin.group_facts._BETWEEN_SECONDS", 0.1)
    monkeypatch.setattr("raymq.cluster.cli_bench._STORED_MESSAGES", 200)
    values = {"STORE": str(services.directory / "broker-a")}
    assert len(examples()) > 15
    for line in examples():
        words = [values.get(word.removeprefix("$"), word) for word in shlex.split(line)]
        done = CliRunner().invoke(main_group, ["--name-servers", ";".join(mq.name_servers), *words])
        assert done.exit_code == 0, f"{line}: {done.output} {done.exception}"
        if words[:2] == ["topic", "create"]:
            with PullConsumer(mq, "billing") as pull:
                pull.commit(pull.queues("orders")[0], 0)
        if words[:2] == ["message", "send"] and "ID" not in values:
            values["ID"] = json.loads(done.stdout)["message_id"]
