"""A server in a process that may open hardly any files says so at once, and names the limit."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from raymq.actors.errors import InvalidInput
from tests.served import serving


@pytest.fixture
def limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("limit")
async def test_where_no_connection_could_be_accepted_a_server_does_not_start() -> None:
    """It listened, and closed every connection without a word."""
    with pytest.raises(InvalidInput, match="RLIMIT_NOFILE"):
        async with serving({}):
            pass
