"""Benches of this tree beside those of another commit, in turns: what has become slower?

    make bench-compare REF=HEAD~20 ARGS="produce --rounds 5 --with '--own --size 100'"
    make bench-compare REF=HEAD~20 ARGS="singles --rounds 40"
    make bench-compare REF=HEAD ARGS="singles --rounds 40 --metrics prometheus"

The other commit is cloned into a folder and gets an environment of its own; each bench runs once per side and round,
another side first each time. A row's best value and its median are told of both sides, and their ratio, which is more
than 1 where this tree is better; so is the processor time that a message costs all processes together, where a bench
tells it, which a busy machine changes less. The rows of baselines (sockets, files) say how much of that is the
machine's: they run the same code on both sides. One row swings by a fifth from process to process here, so a few rounds
say little. `singles` is the exception, single sends alone: there both sides live at once, see `live_sides`. With
`--metrics` this tree's brokers publish metrics there and the other's do not: what do they cost?
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from raymq.cluster.output import console
from tests.bench import live_sides

TREE: Final = Path(__file__).resolve().parents[2]
#: One bench, the environment of the other commit included.
_MAX_SECONDS: Final = 1_800.0


@dataclass
class Compared:
    """One row of both sides, its values in the order in which they were measured."""

    name: str
    unit: str
    before: list[float] = field(default_factory=list)
    now: list[float] = field(default_factory=list)

    @property
    def more_is_better(self) -> bool:
        """Rates are; times, and what a thing takes, are not."""
        return self.unit.endswith("/s")

    def best(self, values: Sequence[float]) -> float:
        """Of one side."""
        return max(values) if self.more_is_better else min(values)

    def ratio(self, before: float, now: float) -> float:
        """How many times as good this tree is; 0: it cannot be said."""
        better, worse = (now, before) if self.more_is_better else (before, now)
        return better / worse if worse else 0.0

    def told(self) -> dict[str, Any]:
        """Plain data."""
        best = self.best(self.before), self.best(self.now)
        median = statistics.median(self.before), statistics.median(self.now)
        return {
            "name": self.name,
            "unit": self.unit,
            "best": best,
            "best_ratio": round(self.ratio(*best), 3),
            "median": median,
            "median_ratio": round(self.ratio(*median), 3),
            "rounds": [len(self.before), len(self.now)],
        }


def compared(before: Iterable[list[dict[str, Any]]], now: Iterable[list[dict[str, Any]]]) -> list[Compared]:
    """The rows that both sides have and that are measurements, in this tree's order.

    Args:
        before: what each round of the other side printed; likewise `now`.
    """
    values: dict[str, dict[str, list[float]]] = {"before": defaultdict(list), "now": defaultdict(list)}
    units: dict[str, str] = {}
    for side, rounds in (("now", now), ("before", before)):
        for rows in rounds:
            for row in rows:
                if row["value"] and not str(row["unit"]).startswith("x"):
                    values[side][row["name"]].append(float(row["value"]))
                    units.setdefault(row["name"], str(row["unit"]))
                cpu_us = row.get("cpu_us", ())  # of each process, or by the process's name
                if spent := sum(cpu_us.values() if isinstance(cpu_us, dict) else cpu_us):
                    values[side][f"{row['name']}: CPU"].append(spent)
                    units.setdefault(f"{row['name']}: CPU", "us")
    both = [name for name in values["now"] if name in values["before"]]
    return [Compared(name, units[name], values["before"][name], values["now"][name]) for name in both]


def clone(ref: str, folder: Path) -> Path:
    """The other commit, with its environment; one that is there already is used again."""
    other = folder / "tree"
    if not other.exists():
        _run(["git", "clone", "--quiet", "--no-checkout", str(TREE), str(other)], folder)
        _run(["git", "-C", str(other), "checkout", "--quiet", _run(["git", "rev-parse", ref], TREE).strip()], folder)
    _run(["make", "--no-print-directory", "env"], other)
    return other


def measure(tree: Path, bench: str, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """What one run of a bench of a tree prints."""
    command = [str(tree / ".venv/bin/python"), str(tree / f"tests/bench/bench_{bench}.py"), "--json", *arguments]
    rows: list[dict[str, Any]] = json.loads(_run(command, tree))
    return rows


def _run(command: Sequence[str], where: Path) -> str:
    ended = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=_MAX_SECONDS, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {ended.returncode}\n{ended.stderr[-2000:]}")
    return ended.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ref", help="the other commit")
    parser.add_argument(
        "benches", nargs="*", default=["produce", "consume"], help="each tests/bench/bench_NAME.py, or singles"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each side runs each bench")
    parser.add_argument("--metrics", help="where this tree's brokers publish metrics in singles; else they do not")
    parser.add_argument("--folder", type=Path, help="where the other commit is, or is cloned to and stays")
    parser.add_argument("--json", action="store_true", help="print one JSON value and nothing else")
    parser.add_argument("--with", dest="further", default="", help="what each bench is told: --with '--size 100'")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        sides = {"before": clone(given.ref, folder), "now": TREE}
        result: list[Compared] = []
        for bench in given.benches:
            if bench == "singles":
                found = live_sides.rows(sides, given.rounds, {"now": given.metrics} if given.metrics else {})
            else:
                found = _in_turns(sides, bench, given.rounds, shlex.split(given.further))
            result += compared(found["before"], found["now"])
    if given.json:
        print(json.dumps([each.told() for each in result]))
    else:
        _report(given.ref, result)
    return 0


def _in_turns(sides: Mapping[str, Path], bench: str, rounds: int, further: Sequence[str]) -> live_sides.Found:
    found: live_sides.Found = {side: [] for side in sides}
    for number in range(rounds):
        for side in sorted(sides, reverse=bool(number % 2)):
            print(f"{bench}, round {number + 1} of {rounds}: {side}", file=sys.stderr)
            found[side].append(measure(sides[side], bench, further))
    return found


def _report(ref: str, rows: Sequence[Compared]) -> None:
    table = Table("what", "unit", f"best: {ref}", "now", "times as good", f"median: {ref}", "now", "times as good")
    for row in rows:
        told = row.told()
        best, median = ([_in_digits(value) for value in told[which]] for which in ("best", "median"))
        table.add_row(row.name, row.unit, *best, f"{told['best_ratio']:.2f}", *median, f"{told['median_ratio']:.2f}")
    console().print(table)


def _in_digits(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
