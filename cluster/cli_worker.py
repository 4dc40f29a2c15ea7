"""The command `raymq worker`, which consumes with a listener of the user."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
import sys
from typing import Any

import click

from raymq.client import PushConsumer
from raymq.client.push.listener import Listener
from raymq.cluster.cli_context import Finder
from raymq.cluster.health_server import HealthServer, consumer_liveness, consumer_readiness
from raymq.cluster.log_format import formatter


@click.command("worker")
@click.argument("listener", metavar="MODULE:LISTENER")
@click.option("--group", required=True, help="The consumer group.")
@click.option("--topic", "topics", required=True, multiple=True, help="Topic to consume; may be given several times.")
@click.option(
    "--tag", default="*", show_default=True, help='Tags of the messages to consume, such as "paid || shipped".'
)
@click.option("--threads", default=20, show_default=True, help="Concurrent calls of the listener.")
@click.option("--batch-size", default=1, show_default=True, help="Most messages per call.")
@click.option(
    "--mode",
    type=click.Choice(["queue", "pop"]),
    default="queue",
    show_default=True,
    help="queue: each member owns queues. pop: members share all queues, for long tasks.",
)
@click.option(
    "--max-reconsume-times", type=int, help="Retries before a message is a dead letter; by default the group's."
)
@click.option(
    "--subscription-version",
    default=0,
    show_default=True,
    help="Version of the subscription; raise it when topics or tag change.",
)
@click.option(
    "--tracing",
    is_flag=True,
    help="Make OpenTelemetry spans; MODULE sets up the SDK.",
)
@click.option(
    "--timeout", default=30.0, show_default=True, help="Seconds that running calls get when the worker stops."
)
@click.option(
    "--health-port",
    type=click.IntRange(0, 65_535),
    help="Answer GET /healthz and /readyz on this port of all interfaces (0: any); 200 if well, else 503.",
)
@click.pass_obj
def worker(
    finder: Finder,
    /,
    listener: str,
    group: str,
    topics: tuple[str, ...],
    timeout: float,
    tracing: bool,
    health_port: int | None,
    **options: Any,
) -> None:
    """Call LISTENER of MODULE with messages until SIGTERM or Ctrl-C.

    Then the consumer leaves the group in order. MODULE is searched in the current directory, too. LISTENER receives a
    list of messages, like the listener of a PushConsumer; it may be a coroutine function. A second signal ends the wait
    for running calls.
    """
    call = load_listener(listener)
    to_terminal = logging.StreamHandler()
    to_terminal.setFormatter(formatter(finder.log_format))
    logging.basicConfig(handlers=[to_terminal])
    tag = options.pop("tag")
    with dataclasses.replace(finder, tracing=tracing).connect() as mq, contextlib.ExitStack() as stack:
        consumer = PushConsumer(mq, group, dict.fromkeys(topics, tag), call, **options)
        if health_port is not None:
            probes = {
                "/healthz": lambda: consumer_liveness(consumer.health),
                "/readyz": lambda: consumer_readiness(consumer.health),
            }
            server = stack.enter_context(HealthServer(health_port, probes))
            click.echo(f"health: http://localhost:{server.port}/healthz and /readyz", err=True)
        click.echo(f"group {group} consumes {', '.join(topics)} with {listener}; Ctrl-C ends it", err=True)
        consumer.run(timeout)
    click.echo(f"group {group}: this consumer has left", err=True)


def load_listener(name: str) -> Listener:
    """Return the object that "module:name" names.

    The current directory is searched first, as in `python -m`.

    Raises:
        click.BadParameter: the text has another form, the module or the name in it does not exist, or the object is not
            callable.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise click.BadParameter(f"{name!r} is not of the form MODULE:LISTENER, such as shop.billing:on_order")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # The module exists, but imports a missing one.
        raise click.BadParameter(
            f"there is no module {error.name} in the current directory ({os.getcwd()}) or among the installed ones"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise click.BadParameter(f"{module_name} has no {attribute!r}")
        found = getattr(found, part)
    if not callable(found):
        raise click.BadParameter(f"{name} is {type(found).__name__}, not a function")
    listener: Listener = found
    return listener
