"""Ask the admin client for explanations that not every version of it has."""

from __future__ import annotations

from typing import Any

from raymq.client import Admin
from raymq.client.plain_data import to_plain_data


async def explain_group(admin: Admin, group: str) -> dict[str, Any] | None:
    """Return why a group does not move, as {"verdict", "evidence"}; None if the client cannot tell."""
    explain = getattr(admin, "aexplain_group", None)
    if explain is None:
        return None
    found: dict[str, Any] = to_plain_data(await explain(group))
    return found


async def trace_message(admin: Admin, message_id: str) -> dict[str, Any] | None:
    """Return what became of a message: stored, consumed, retries, dead letters, redrives; None as above."""
    trace = getattr(admin, "atrace_message", None)
    if trace is None:
        return None
    found: dict[str, Any] = to_plain_data(await trace(message_id))
    found.pop("message", None)  # The page has it already.
    return found
