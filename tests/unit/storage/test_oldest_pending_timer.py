"""Test which pending timer keeps the log's oldest files, as a start that frees space asks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raymq.storage.timers.oldest_pending_timer import find_oldest_pending
from tests.unit.storage.timer_logs import HOUR, START_MS, checkpoint, entry, open_timer_log

LOG_END = 1 << 40


@pytest.mark.parametrize(("log_min", "oldest"), [(0, 100), (100, 100), (101, 300), (301, 1000)])
def test_timer_of_a_removed_log_file_keeps_no_other_file(tmp_path: Path, log_min: int, oldest: int) -> None:
    # The answer used to be a place before the log's begin, and a start on a full disk found no file to remove.
    log = open_timer_log(tmp_path)
    log.append(np.concatenate([entry(START_MS + HOUR, number, place) for number, place in enumerate((100, 300))]))
    checkpoint(log, LOG_END)
    log.close()
    assert find_oldest_pending(tmp_path, log_min=log_min, before=1000, log_end=LOG_END)[0] == oldest
