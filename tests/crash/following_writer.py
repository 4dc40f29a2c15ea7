"""The replica of test_replica_kill.py: it truncates its log where PLACE is given, and follows its master.

    python following_writer.py DIRECTORY MASTER FAILPOINT [PLACE]

MASTER is a closed store, opened read-only. The program prints the log's end whenever it could acknowledge it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from raymq.storage.failpoints import arm
from raymq.storage.store import Store
from tests.store_records import SMALL
from tests.store_replication import ship

CONFIG = replace(SMALL, index_slots=500, index_entries=400, flush_interval_ms=3_600_000)


def main(directory: Path, master: Path, failpoint: str, place: int | None) -> None:
    with Store.open(master, CONFIG, read_only=True) as source:
        store = Store.open(directory, CONFIG)
        arm(failpoint)
        if place is not None and store.max_physical_offset > place:
            store.order_truncation(place, last_epoch=1)
            store.close()
            store = Store.open(directory, CONFIG)
        store.follow()
        while store.max_physical_offset < source.max_physical_offset:
            ship(
                source,
                store,
                seed=store.max_physical_offset,
                most=900,
                written=lambda: print(store.max_physical_offset, flush=True),
            )
        store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else None)
