"""The commands `raymq topic ...`."""

from __future__ import annotations

from dataclasses import asdict
from fnmatch import fnmatchcase

import click

from raymq.actors.protocol import MessageType
from raymq.client import Admin, RayMQError
from raymq.cluster.cli_context import Finder, Rows, admin_rows, json_option
from raymq.cluster.output import print_fields

_TYPES = click.Choice([each.value for each in MessageType], case_sensitive=False)


@click.group("topic")
def topic_commands() -> None:
    """Create, list, show, change and delete topics."""


@topic_commands.command("list")
@click.argument("pattern", default="*")
@click.option("--system", is_flag=True, help="Also list system topics and the topics of groups.")
@admin_rows("no such topic: raymq topic create NAME --queues 4")
def list_topics(admin: Admin, pattern: str, system: bool) -> Rows:
    """List the topics of the cluster, or those whose names match PATTERN ("orders-*")."""
    return [{"topic": topic} for topic in admin.topics(system) if fnmatchcase(topic, pattern)]


@topic_commands.command("create")
@click.argument("name")
@click.option("--queues", default=4, show_default=True, help="Queues on every broker.")
@click.option("--ordered", is_flag=True, help="Mark the topic as ordered.")
@click.option("--type", "message_type", type=_TYPES, help="Accept only messages of this type; by default all.")
@json_option
@click.pass_obj
def create_topic(
    finder: Finder, name: str, queues: int, ordered: bool, message_type: str | None, as_json: bool
) -> None:
    """Create topic NAME on every broker; repeating the command changes nothing."""
    with finder.connect() as mq, Admin(mq) as admin:
        admin.create_topic(name, queues, ordered, message_type=message_type)
    shown = {"topic": name, "queues": queues, "ordered": ordered, "message_type": message_type}
    print_fields(shown, as_json=as_json)


@topic_commands.command("stats")
@click.argument("name")
@click.option("--rates", is_flag=True, help="Show messages and bytes per second instead, means of the last minute.")
@admin_rows("no queue", watch=True)
def topic_stats(admin: Admin, name: str, rates: bool) -> Rows:
    """Show the offsets of topic NAME's queues, or with --rates its rates."""
    if rates:
        return [asdict(found) for found in admin.topic_rates(name)]
    return [
        {"broker": queue.broker, "queue_id": queue.queue_id, **asdict(found)}
        for queue, found in admin.topic_stats(name).items()
    ]


@topic_commands.command("route")
@click.argument("name")
@admin_rows("no broker", table=lambda rows: [{**row, "replicas": " ".join(row["replicas"])} for row in rows])
def topic_route(admin: Admin, name: str) -> Rows:
    """Show the brokers of topic NAME: addresses, queues and permissions.

    A broker without an address is away.
    """
    return [asdict(found) for found in admin.topic_route(name)]


#: RocketMQ's number of each permission.
_PERMISSIONS = {"rw": 6, "r": 4, "w": 2, "none": 0}


@topic_commands.command("update")
@click.argument("name")
@click.option("--queues", type=int, help="Queues on every broker, to read and to write.")
@click.option("--read-queues", type=int, help="Read queues on every broker.")
@click.option("--write-queues", type=int, help="Write queues on every broker; to remove queues, reduce these first.")
@click.option("--permission", type=click.Choice(list(_PERMISSIONS)), help="Permission of the topic.")
@click.option("--ordered/--unordered", default=None, help="Whether the topic is marked as ordered.")
@click.option("--type", "message_type", type=_TYPES, help="Accept only messages of this type; MIXED accepts all.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@json_option
@click.pass_obj
def update_topic(
    finder: Finder,
    name: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    permission: str | None,
    ordered: bool | None,
    message_type: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change topic NAME on every broker that has it; other settings stay unchanged."""
    perm = None if permission is None else _PERMISSIONS[permission]
    options = {
        "queues": queues,
        "read_queues": read_queues,
        "write_queues": write_queues,
        "permission": perm,
        "ordered": ordered,
        "message_type": message_type,
    }
    changes = {field: value for field, value in options.items() if value is not None}
    if not changes:
        raise click.UsageError("nothing to change: give --queues, --permission, --ordered or the like")
    with finder.connect() as mq, Admin(mq) as admin:
        admin.update_topic(
            name,
            queues,
            ordered,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=perm,
            message_type=message_type,
            dry_run=dry_run,
        )
    print_fields({"topic": name, **changes, "updated": not dry_run}, as_json=as_json)


@topic_commands.command("delete")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@click.option("--yes", is_flag=True, help="Really delete it.")
@json_option
@click.pass_obj
def delete_topic(finder: Finder, name: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete topic NAME and its messages."""
    with finder.connect() as mq, Admin(mq) as admin:
        messages = sum(found.max_offset - found.min_offset for found in admin.topic_stats(name).values())
        if not dry_run and not yes:
            raise RayMQError(f"add --yes to delete topic {name} with {messages} messages")
        if not dry_run:
            admin.delete_topic(name)
    print_fields({"topic": name, "messages": messages, "deleted": not dry_run}, as_json=as_json)
