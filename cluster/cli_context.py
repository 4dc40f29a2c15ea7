"""What every command shares: how the cluster is found, and the --json option."""

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
from raymq.cluster.output import print_rows

if TYPE_CHECKING:
    from raymq.cluster.bootstrap import Cluster

#: Rows of the same fields.
Rows = Sequence[Mapping[str, Any]]

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")


class Time(click.ParamType[float]):
    """A point in time, see `timestamps.AS_TEXT`; one that is no number is shown with its zone on stderr.

    Args:
        end: "inf" is a time too, behind everything.
    """

    name = "time"

    def __init__(self, *, end: bool = False) -> None:
        self._end = end

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return it in seconds since 1970."""
        if isinstance(value, float):
            return value
        try:
            seconds = timestamps.from_text("time", value, end=self._end)
        except InvalidInput as error:
            self.fail(str(error), param, ctx)
        if not value.strip().replace(".", "", 1).isdigit() and seconds != math.inf:
            click.echo(f"{value} is {timestamps.shown(seconds)}", err=True)
        return seconds


@dataclass(frozen=True, slots=True)
class Finder:
    """How to reach the cluster: by addresses if they are given, else through the Ray at `address` if that is given.

    Where nothing is said (None), it is where this user noted it last, or in the Ray that is found.
    """

    name_servers: str | None
    namespace: str
    address: str | None
    tls: Tls | None
    connect_with: Callable[[Finder], Cluster]

    def refuse_addresses(self, command: str) -> None:
        """End with wrong usage where the cluster is named by addresses, and `command` needs its Ray."""
        if self.name_servers:
            raise click.UsageError(
                f"{command} works through Ray, not through name servers: leave out --name-servers "
                "(RAYMQ_NAME_SERVERS), and run it where the cluster's Ray is"
            )

    def connect(self) -> Cluster:
        """A connection; use it as a context manager."""
        with self.saying_how_to_start():
            return self.connect_with(self)

    @contextlib.contextmanager
    def saying_how_to_start(self) -> Iterator[None]:
        """Within the block, say in a shell's words what to do where no cluster runs."""
        try:
            yield
        except BrokerUnavailable as error:
            is_absent = error.broker == "cluster" and error.remedy is None
            if not is_absent and (error.broker != "ray" or type(error) is BrokerUnavailable or self.address):
                raise
            raise BrokerUnavailable(
                "cluster",
                f"no cluster runs in namespace {self.namespace}",
                remedy="start one: raymq cluster start; or say where it is: --name-servers HOST:PORT, or --address "
                "(RAY_ADDRESS) and --namespace",
            ) from error


def admin_rows(
    empty: str, *, table: Callable[[Rows], Rows] = lambda rows: rows
) -> Callable[[Callable[..., Rows]], Callable[..., None]]:
    """For a command that asks the cluster: its function is given an `Admin` and returns rows, which are printed.

    It has the option --json then; `empty` is said where there is no row. `table`: what of the rows is for people.
    """

    def decorate(ask: Callable[..., Rows]) -> Callable[..., None]:
        @json_option
        @click.pass_obj
        @wraps(ask)
        def command(finder: Finder, /, *, as_json: bool, **arguments: Any) -> None:
            with finder.connect() as mq, Admin(mq) as admin:
                rows = ask(admin, **arguments)
            print_rows(rows if as_json else table(rows), as_json=as_json, empty=empty)

        return command

    return decorate
