"""The command `raymq demo`."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click

from raymq.client import InvalidInput
from raymq.demo.demo_input import bundled_flights, describe
from raymq.demo.demo_output import DemoOutput
from raymq.demo.demo_run import run
from raymq.demo.output_redirect import redirect_output

#: The tag and measure columns of the bundled flights.
_FLIGHT_DEFAULTS = {"tag": "carrier", "measure": "dep_delay"}


@click.command("demo")
@click.option(
    "--input", "path", type=click.Path(path_type=Path), help="CSV, JSONL or Parquet; by default the bundled flights."
)
@click.option("--key", help="The column whose values are the messages' keys; by default the first.")
@click.option("--tag", help="The column whose values are the messages' tags.")
@click.option("--measure", help="A number column whose mean Spark computes, by tag.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="Keep the stores in this new folder; else they are removed."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON at the end and nothing else.")
def demo(
    path: Path | None, key: str | None, tag: str | None, measure: str | None, data: Path | None, as_json: bool
) -> None:
    """Run RayMQ's main features on real data, and check every count against the input.

    The demo starts a cluster of its own: 2 brokers, name server, scheduler. Every row of the input becomes a message; a
    consumer fails on dirty rows, which are retried and end in the dead-letter queue; one message is found by its key;
    Spark reads both topics, computes sums, writes them to a topic that is read back, and reads one of the topics as a
    stream. Exit code 1 if a count differs.
    """
    with ExitStack() as stack:
        if path is None:
            path = stack.enter_context(bundled_flights())
            tag, measure = tag or _FLIGHT_DEFAULTS["tag"], measure or _FLIGHT_DEFAULTS["measure"]
        plan = describe(path, key)
        for name, column in (("tag", tag), ("measure", measure)):
            if column is not None and column not in plan.columns:
                raise InvalidInput(name, f"one of the columns {', '.join(plan.columns)}", column)
        directory = _directory(data, stack)
        log = directory / "demo.log"
        out, _ = stack.enter_context(redirect_output(log))
        screen = DemoOutput(out, quiet=as_json)
        screen.say(f"{path.name}: {plan.rows} rows, key {plan.key or '-'}, tag {tag or '-'}")
        outcome = run(plan, directory, tag, measure, screen)
        screen.summary(outcome.summary, tag, measure)
        screen.result(outcome.counts, outcome.retries, outcome.duplicates, outcome.streamed, outcome.problems)
        if data is not None:
            screen.say(f"the stores are in {directory}, the output of Ray and Spark in {log}")
        if as_json:
            print(json.dumps(outcome.counts.as_dict()), file=out)
    if not outcome.counts.ok:
        sys.exit(1)


def _directory(data: Path | None, stack: ExitStack) -> Path:
    """Return the folder of the stores: a temporary one, or the new folder `data`.

    The temporary folder is removed at the end.
    """
    if data is None:
        directory = Path(tempfile.mkdtemp(prefix="raymq-demo-"))
        stack.callback(_remove, directory)
        return directory
    if data.exists() and any(data.iterdir()):
        raise InvalidInput("data", "a folder that is empty or does not exist", str(data))
    data.mkdir(parents=True, exist_ok=True)
    return data.absolute()


def _remove(directory: Path) -> None:
    """Remove a folder to which ending processes may still write."""
    for _ in range(50):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.1)
