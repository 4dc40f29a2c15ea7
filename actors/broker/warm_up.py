"""Prepare a broker's process once, before it serves."""

from __future__ import annotations

import pyarrow as pa

from raymq.actors.filter import sql_filter


def warm_up() -> None:
    """Load and prepare what would otherwise block a serving broker; later calls do nothing."""
    # pyarrow's first conversion imports pandas if it is installed: half a second.
    pa.array([0]).to_numpy()
    sql_filter.warm_up()
