"""Test that a server with a tiny file limit refuses to start and names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: Run in a process of its own, because the test process may have more files open.
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


def test_server_with_too_low_file_limit_refuses_to_start() -> None:
    """Guard against a server that listens but silently closes each connection."""
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
