"""Sum up runs: several runs with different seeds count like a long one.

    python -m tests.chaos.failover.sum_runs FOLDER [FOLDER ...]

Each FOLDER has the `verdict.json` of a run. It prints one table, and exits with 1 if a run was not good.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos.failover.verdict import Recovery, goal_of, row, title


def summarize(verdicts: Sequence[dict[str, Any]]) -> str:
    """Return a line for each run, the sums, and a row for each kind of fault."""
    lines = []
    counts: Counter[str] = Counter()
    pauses: dict[str, Recovery] = {}
    for each in verdicts:
        counts.update(each["counts"])
        good = "good" if each["good"] else f"NOT GOOD: {each['violations']} {each['stuck']}"
        counted = ", ".join(f"{number} {what}" for what, number in each["counts"].items())
        lines.append(f"seed {each['seed']}, {each['settings']}, {each['seconds']:.0f} s: {good}; {counted}")
        for name, values in each["recoveries"].items():
            has_copies = values["goal"] is not None or goal_of(name) is None
            recovery = pauses.setdefault(name, Recovery(name, has_copies=has_copies))
            recovery.pauses.extend(float("inf") if pause is None else pause for pause in values["pauses"])
            recovery.afters.extend(float("inf") if after is None else after for after in values["afters"])
            recovery.waits.extend(values["waits"])
            recovery.slowdowns.extend(values.get("slowdowns", ()))
    lines.append("all: " + ", ".join(f"{number} {what}" for what, number in counts.items()))
    lines.append(title())
    lines += [row(pauses[name]) for name in sorted(pauses, key=lambda name: (" + " in name, name))]
    return "\n".join(lines)


def main(folders: Sequence[str]) -> int:
    verdicts = [json.loads((Path(folder) / "verdict.json").read_text("utf-8")) for folder in folders]
    print(summarize(verdicts))
    return 0 if all(each["good"] for each in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
