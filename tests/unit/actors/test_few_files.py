"""A server in a process that may open hardly any files says so at once, and names the limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: A process of its own: that of the tests may have more files open than these.
SERVES_WITH_FEW_FILES = """
import asyncio, resource
from raymq.actors.errors import InvalidInput
from tests.wire_server import serving

async def serve():
    try:
        async with serving({}):
            print("serves")
    except InvalidInput as refused:
        print(refused)

resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
asyncio.run(serve())
"""


def test_where_no_connection_could_be_accepted_a_server_does_not_start() -> None:
    """It listened, and closed every connection without a word."""
    ended = subprocess.run(
        [sys.executable, "-c", SERVES_WITH_FEW_FILES],
        cwd=Path(__file__).parents[3],  # where `tests` is found
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "RLIMIT_NOFILE" in ended.stdout
