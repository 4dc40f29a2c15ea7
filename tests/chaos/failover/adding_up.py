"""Adds runs up: several with seeds of their own are as good as a long one.

    python -m tests.chaos.failover.adding_up FOLDER [FOLDER ...]

Each FOLDER has the `verdict.json` of a run. It prints one table, and exits with 1 where a run was not good.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos.failover.verdict import Recovery, goal_of, row, title


def added_up(verdicts: Sequence[dict[str, Any]]) -> str:
    """A line for each run, the sums, and a row for each kind of fault."""
    lines = []
    counts: Counter[str] = Counter()
    pauses: dict[str, Recovery] = {}
    for each in verdicts:
        counts.update(each["counts"])
        good = "good" if each["good"] else f"NOT GOOD: {each['violations']} {each['stuck']}"
        counted = ", ".join(f"{number} {what}" for what, number in each["counts"].items())
        lines.append(f"seed {each['seed']}, {each['settings']}, {each['seconds']:.0f} s: {good}; {counted}")
        for name, told in each["recoveries"].items():
            has_copies = told["goal"] is not None or goal_of(name) is None
            recovery = pauses.setdefault(name, Recovery(name, has_copies=has_copies))
            recovery.pauses.extend(float("inf") if pause is None else pause for pause in told["pauses"])
            recovery.afters.extend(float("inf") if after is None else after for after in told["afters"])
            recovery.waits.extend(told["waits"])
            recovery.slowdowns.extend(told.get("slowdowns", ()))
    lines.append("all: " + ", ".join(f"{number} {what}" for what, number in counts.items()))
    lines.append(title())
    lines += [row(pauses[name]) for name in sorted(pauses, key=lambda name: (" + " in name, name))]
    return "\n".join(lines)


def main(folders: Sequence[str]) -> int:
    verdicts = [json.loads((Path(folder) / "verdict.json").read_text("utf-8")) for folder in folders]
    print(added_up(verdicts))
    return 0 if all(each["good"] for each in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
