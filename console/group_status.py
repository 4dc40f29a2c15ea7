"""Say in a word how a group does, from its figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raymq.console.cluster_sampler import GroupFigures

#: A group whose oldest message is older than this and that commits nothing does not move.
_STALLED_SECONDS: Final = 60.0
#: A group whose oldest message is younger than this keeps up.
_FRESH_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A status for the eye.

    Attributes:
        level: "good", "busy", "bad", "idle" or "unknown", which is also a class of the style sheet.
    """

    level: str
    text: str


def group_status(figures: GroupFigures | None) -> GroupStatus:
    """Return the status of a group; without figures it is unknown."""
    if figures is None:
        return GroupStatus("unknown", "not sampled yet")
    if figures.lag is None:
        return GroupStatus("unknown", "lag unknown")
    if figures.lag == 0:
        if figures.lag_partly_unknown:
            return GroupStatus("unknown", "lag partly unknown")
        return GroupStatus("good", "caught up") if figures.has_members else GroupStatus("idle", "no member")
    if not figures.has_members:
        return GroupStatus("bad", "no member connected")
    is_old = figures.oldest_age is not None and figures.oldest_age > _STALLED_SECONDS
    if figures.rate_out == 0 and is_old:
        return GroupStatus("bad", "does not move")
    if figures.oldest_age is not None and figures.oldest_age < _FRESH_SECONDS:
        return GroupStatus("good", "keeps up")
    return GroupStatus("busy", "working")
