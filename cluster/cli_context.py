"""The shared parts of all commands: finding the cluster, and the option --json."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.protocol import Tls
from raymq.client import Admin, InvalidInput, timestamps
from raymq.cluster.log_format import LogFormat
from raymq.cluster.output import print_rows, rows_table
from raymq.cluster.watch import show, watch_option

if TYPE_CHECKING:
    from raymq.cluster.bootstrap import Cluster

#: Rows with the same fields.
Rows = Sequence[Mapping[str, Any]]

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")


class Time(click.ParamType[float]):
    """A point in time, see `timestamps.AS_TEXT`.

    A time that is not given as a number is shown with its time zone on stderr.

    Args:
        end: "inf" is accepted too, as a time after all others.
    """

    name = "time"

    def __init__(self, *, end: bool = False) -> None:
        self._end = end

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the time in seconds since 1970."""
        if isinstance(value, float):
            return value
        try:
            seconds = timestamps.parse_time("time", value, end=self._end)
        except InvalidInput as error:
            self.fail(str(error), param, ctx)
        if not value.strip().replace(".", "", 1).isdigit() and seconds != math.inf:
            click.echo(f"{value} is {timestamps.shown(seconds)}", err=True)
        return seconds


@dataclass(frozen=True, slots=True)
class Finder:
    """The address of the cluster: name servers if given, else the Ray at `address`.

    If neither is given (None), the cluster is found through this user's cluster file, or in the Ray that is found.
    """

    name_servers: str | None
    namespace: str
    address: str | None
    tls: Tls | None
    connect_with: Callable[[Finder], Cluster]
    tracing: bool = False
    log_format: LogFormat = "text"

    def refuse_addresses(self, command: str) -> None:
        """Raise a usage error if `command` needs Ray, but only addresses are given."""
        if self.name_servers:
            raise click.UsageError(
                f"{command} works through Ray, not through name servers: leave out --name-servers "
                "(RAYMQ_NAME_SERVERS), and run it on a machine of the cluster's Ray"
            )

    def connect(self) -> Cluster:
        """Return a connection for use as a context manager."""
        with self.with_start_hint():
            return self.connect_with(self)

    @contextlib.contextmanager
    def with_start_hint(self) -> Iterator[None]:
        """Within the block, add a shell command as the remedy if no cluster runs."""
        try:
            yield
        except BrokerUnavailable as error:
            is_absent = error.broker == "cluster" and error.remedy is None
            if not is_absent and (error.broker != "ray" or type(error) is BrokerUnavailable or self.address):
                raise
            raise BrokerUnavailable(
                "cluster",
                f"no cluster runs in namespace {self.namespace}",
                remedy="start one: raymq cluster start; or name a running one: --name-servers HOST:PORT, or --address "
                "(RAY_ADDRESS) and --namespace",
            ) from error


def admin_rows(
    empty: str, *, table: Callable[[Rows], Rows] = lambda rows: rows, watch: bool = False
) -> Callable[[Callable[..., Rows]], Callable[..., None]]:
    """Decorate a function that receives an `Admin` and returns rows to print.

    The command gets the option --json, and --watch if `watch` is True; it prints `empty` if there are no rows. `table`
    converts the rows to the form for people.
    """

    def decorate(ask: Callable[..., Rows]) -> Callable[..., None]:
        @json_option
        @click.pass_obj
        @wraps(ask)
        def command(finder: Finder, /, *, as_json: bool, **arguments: Any) -> None:
            seconds = arguments.pop("watch", None)
            with finder.connect() as mq, Admin(mq) as admin:
                if seconds is None:
                    rows = ask(admin, **arguments)
                else:
                    show(
                        lambda: ask(admin, **arguments),
                        lambda rows: rows_table(table(rows), empty),
                        as_json=as_json,
                        seconds=seconds,
                    )
                    return
            print_rows(rows if as_json else table(rows), as_json=as_json, empty=empty)

        return watch_option(command) if watch else command

    return decorate
