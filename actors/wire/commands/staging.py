"""Staged writes (ours): records that many tasks bring, and that become visible together when their driver commits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.append import INT32, pack
from raymq.actors.wire.frame import Buffer, Command, Serialization


def stage_command(
    transaction: str, part: str, number: int, lane: tuple[str, int], records: Buffer, sizes: npt.NDArray[np.int32]
) -> Command:
    """STAGE_RECORDS: keep a chunk until its transaction's commit."""
    fields = {
        "transaction": transaction,
        "part": part,
        "number": number,
        "topic": lane[0],
        "queue_id": lane[1],
        "sizes": pack(sizes, INT32),
    }
    return Command(RequestCode.STAGE_RECORDS, fields, records, serialization=Serialization.MSGPACK)


def commit_staged_command(transaction: str, parts: Sequence[str]) -> Command:
    """COMMIT_STAGED: make the chunks of `parts` visible. May be repeated."""
    fields = {"transaction": transaction, "parts": list(parts)}
    return Command(RequestCode.COMMIT_STAGED, fields, serialization=Serialization.MSGPACK)


def abort_staged_command(transaction: str) -> Command:
    """ABORT_STAGED: forget the transaction's chunks."""
    return Command(RequestCode.ABORT_STAGED, {"transaction": transaction}, serialization=Serialization.MSGPACK)
