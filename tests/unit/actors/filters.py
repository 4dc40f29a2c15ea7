"""Parse filter expressions at once."""

from __future__ import annotations

from raymq.actors.filter.tag_expression import MessageFilter, parse_filter_steps
from raymq.storage.cooperative_steps import run_steps


def parse_filter(kind: str, expression: str) -> MessageFilter:
    """Return the filter of an expression."""
    return run_steps(parse_filter_steps(kind, expression))
