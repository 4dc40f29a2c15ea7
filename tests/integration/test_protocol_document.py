"""Test that docs/internals/protocol.md lists the codes and names of all commands that servers serve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.actors.wire.codes import RequestCode
from tests.integration.conftest import Services

pytestmark = pytest.mark.integration

DOCUMENT = Path(__file__).parents[2] / "docs" / "internals" / "protocol.md"
FIRST_RAYMQ_CODE = 900_000


def rows() -> Iterator[tuple[list[int], list[str], str]]:
    """Yield codes, names and last column of each command row, without notes in parentheses."""
    _, _, section = DOCUMENT.read_text("utf-8").partition("\n## Commands\n")
    for line in section.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and re.fullmatch(r"[\d, ]+", cells[0]) and re.match(r"[A-Z][A-Z_0-9]+\b", cells[1]):
            names = re.sub(r"\(.*?\)", "", cells[1])
            yield [int(code) for code in cells[0].split(",")], [name.strip() for name in names.split(",")], cells[2]


def documented_codes(server: str) -> set[int]:
    theirs = {
        code for codes, _, by in rows() for code in codes if codes[0] < FIRST_RAYMQ_CODE and by.startswith(server)
    }
    return theirs | {
        code
        for codes, _, by in rows()
        for code in codes
        if code > FIRST_RAYMQ_CODE and not by.startswith(("keeper:", "replica:"))
    }


def test_documented_codes_have_request_code_names() -> None:
    for codes, names, _ in rows():
        assert [RequestCode(code).name for code in codes] == names


def test_each_code_is_documented_once() -> None:
    listed = [code for codes, _, _ in rows() for code in codes]
    assert len(listed) == len(set(listed)) > 80


def test_document_lists_broker_commands(services: Services) -> None:
    assert documented_codes("broker") == set(services.brokers["broker-a"]._server.handlers)


def test_document_lists_keeper_commands() -> None:
    served = {code for codes, _, by in rows() for code in codes if by.startswith("keeper:")}
    assert served == {RequestCode.ASK_KEEPER, RequestCode.KEEPER_STATUS}


def test_document_lists_name_server_commands(services: Services) -> None:
    ours = {code for code in documented_codes("name server") if code > FIRST_RAYMQ_CODE}
    both = {RequestCode.STATUS, RequestCode.AGREE_VERSIONS}
    assert documented_codes("name server") - ours | both == set(services.name_server._server.handlers)
