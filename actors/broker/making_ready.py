"""What a broker's process does once, before it serves."""

from __future__ import annotations

import pyarrow as pa

from raymq.actors.filter import sql_filter


def make_ready() -> None:
    """Load and prepare what a broker that serves already would stand still for; nothing is done a second time."""
    # pyarrow's first conversion imports pandas where it is installed: half a second.
    pa.array([0]).to_numpy()
    sql_filter.make_ready()
