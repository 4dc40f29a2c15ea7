"""The commands `raymq broker ...`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import click

from raymq.actors.errors import Timeout
from raymq.client import Admin, BrokerChange, Operation
from raymq.client.plain_data import to_plain_data
from raymq.cluster import bootstrap
from raymq.cluster.cli_context import Finder, Rows, admin_rows, json_option
from raymq.cluster.output import broker_fields, broker_rows, print_fields

#: The most seconds of an election.
_WAIT_SECONDS = 30.0
#: The interval at which the progress of a change is checked.
_POLL_SECONDS = 0.1


@click.group("broker")
def broker_commands() -> None:
    """Show brokers and replicas, change and restart them, and elect masters."""


@broker_commands.command("list")
@admin_rows("no broker", table=broker_rows)
def list_brokers(admin: Admin) -> Rows:
    """List every broker with all of its replicas, as reported now."""
    return [broker_fields(broker) for broker in admin.cluster_info().brokers]


@broker_commands.command("elect")
@click.argument("broker")
@click.option("--replica", type=int, help="Number of the replica to elect; by default a running master stays.")
@click.option("--unclean", is_flag=True, help="Accept the loss of messages that only unreachable replicas have.")
@click.option("--dry-run", is_flag=True, help="Show the master, and change nothing.")
@json_option
@click.pass_obj
def elect(finder: Finder, broker: str, replica: int | None, unclean: bool, dry_run: bool, as_json: bool) -> None:
    """Ensure that BROKER has a master."""
    with finder.connect() as mq, Admin(mq) as admin:
        election = admin.elect(broker, replica, unclean, dry_run=dry_run).wait(_WAIT_SECONDS)
    print_fields(to_plain_data(election), as_json=as_json)


@broker_commands.command("restart")
@click.argument("broker", required=False)
@click.option("--rolling", is_flag=True, required=True, help="One process after the other, while clients go on.")
@click.option("--dry-run", is_flag=True, help="Show the steps, and change nothing.")
@json_option
@click.pass_obj
def restart(finder: Finder, broker: str | None, rolling: bool, dry_run: bool, as_json: bool) -> None:
    """Restart all brokers, or BROKER, one process after the other.

    BROKER is the name of a group, or of a replica such as broker-a.1. A master hands over its role first, and each
    group is in sync again before the next replica restarts. If the command is interrupted, run it again.
    """
    _change(finder, "broker restart", as_json, lambda admin: admin.restart(broker, rolling, dry_run=dry_run))


@broker_commands.command("add")
@click.option("--replica-of", "group", metavar="BROKER", help="Add a replica to this group, instead of a new group.")
@click.option("--name", help="The new group's name; by default the next letter.")
@click.option("--replicas", type=int, help="Number of the new group's replicas; by default as many as the others have.")
@click.option(
    "--to", "host", help="The machine of the (first) replica, by name or address; by default the least loaded one."
)
@click.option(
    "--topics",
    default="all",
    show_default=True,
    help='Topics to create on a new group: "all" but ordered ones, "none", or names joined by ",".',
)
@click.option("--dry-run", is_flag=True, help="Show the steps, and change nothing.")
@json_option
@click.pass_obj
def add(
    finder: Finder,
    group: str | None,
    name: str | None,
    replicas: int | None,
    host: str | None,
    topics: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Add a broker group with topics, or add a replica to a group.

    The command waits until the new replicas are in sync. If it is interrupted, run it again, or take the new replica
    away with `raymq broker remove`.
    """
    chosen = topics if topics in ("all", "none") else topics.split(",")
    _change(
        finder,
        "broker add",
        as_json,
        lambda admin: admin.add_broker(name, replicas, replica_of=group, host=host, topics=chosen, dry_run=dry_run),
    )


@broker_commands.command("drain")
@click.argument("broker")
@click.option(
    "--remove", is_flag=True, help="When the group is empty, end its processes and remove it from all records."
)
@click.option("--cancel", is_flag=True, help="Stop the drain: the group takes messages again.")
@click.option(
    "--lose",
    is_flag=True,
    help="Drain even a group with dead letters, progress of streams, or topics that no other has.",
)
@click.option("--without-group", "without", multiple=True, metavar="GROUP", help="Do not wait for this consumer group.")
@click.option("--dry-run", is_flag=True, help="Show what is left and the next step, and change nothing.")
@json_option
@click.pass_obj
def drain(
    finder: Finder,
    broker: str,
    remove: bool,
    cancel: bool,
    lose: bool,
    without: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Stop new messages to BROKER, a group, and wait until it is drained.

    A group is drained when it holds no message or state that clients still need. If the command is interrupted, the
    group continues to refuse new messages; run the command again to wait further.
    """
    _change(
        finder,
        "broker drain",
        as_json,
        lambda admin: admin.drain(
            broker, remove=remove, cancel=cancel, lose=lose, without_groups=without, dry_run=dry_run
        ),
    )


@broker_commands.command("move")
@click.argument("broker")
@click.option("--replica", type=int, required=True, help="Number of the replica to move, counted from 0.")
@click.option("--to", "host", required=True, help="The machine to move to, by name or address.")
@click.option("--dry-run", is_flag=True, help="Show the steps, and change nothing.")
@json_option
@click.pass_obj
def move(finder: Finder, broker: str, replica: int, host: str, dry_run: bool, as_json: bool) -> None:
    """Move a replica of BROKER to another machine.

    A new replica is added there and copies all data; then the old one is removed. The old directory stays where it is.
    If the command is interrupted, run it again, or take the new replica away with `raymq broker remove`.
    """
    _change(finder, "broker move", as_json, lambda admin: admin.move(broker, replica, host, dry_run=dry_run))


@broker_commands.command("remove")
@click.argument("broker")
@click.option("--dry-run", is_flag=True, help="Show the steps, and change nothing.")
@json_option
@click.pass_obj
def remove(finder: Finder, broker: str, dry_run: bool, as_json: bool) -> None:
    """Remove a replica such as broker-a.1, or a group, which is drained first.

    The first replica of broker-a is broker-a.0. The directories stay.
    """
    _change(finder, "broker remove", as_json, lambda admin: admin.remove_broker(broker, dry_run=dry_run))


@broker_commands.command("forget")
@click.argument("broker")
@click.option(
    "--yes",
    is_flag=True,
    help="Confirm that the broker is gone for good, with all data that only it has.",
)
@click.option("--dry-run", is_flag=True, help="Check the name, and change nothing.")
@json_option
@click.pass_obj
def forget(finder: Finder, broker: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Declare that BROKER, which is unavailable, is lost permanently.

    New sinks and streams then need not wait for it, and it is not listed any more. A later `raymq cluster start` with
    the same arguments creates a broker with this name again: delete the directory of the lost one before.
    """
    if not (yes or dry_run):
        raise click.UsageError("--yes confirms that the broker is gone for good; --dry-run only checks its name")
    with finder.connect() as mq, Admin(mq) as admin:
        admin.forget_broker(broker, dry_run=dry_run)
    print_fields({"broker": broker, "forgotten": not dry_run}, as_json=as_json)


def _change(finder: Finder, command: str, as_json: bool, begin: Callable[[Admin], Operation[BrokerChange]]) -> None:
    """Run a change of brokers, and print its progress on stderr."""
    finder.refuse_addresses(command)
    with bootstrap.connect(finder.namespace, finder.address or "auto", tls=finder.tls) as mq, Admin(mq) as admin:
        operation = begin(admin)
        try:
            change = _watched(operation)
        except KeyboardInterrupt:
            click.echo("interrupted; run the command again to continue", err=True)
            raise
    print_fields(to_plain_data(change), as_json=as_json)


def _watched(operation: Operation[BrokerChange]) -> BrokerChange:
    shown = 0
    while True:
        is_over = operation.state != "running"
        for step in operation.steps[shown:]:
            click.echo(step, err=True)
            shown += 1
        if is_over:
            return operation.wait()
        with contextlib.suppress(Timeout):
            operation.wait(_POLL_SECONDS)
