"""The `raymq` command: it finds the cluster, calls the Python API, and prints results.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage. Commands of packages that depend on this one (`raymq demo`) are
found through the entry-point group `raymq.commands`, so that this package does not import them.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from raymq.actors.protocol import Tls
from raymq.client import RayMQError
from raymq.cluster import cluster_file, cluster_file_check
from raymq.cluster.bootstrap import Cluster, connect
from raymq.cluster.cli_bench import bench_commands
from raymq.cluster.cli_broker import broker_commands
from raymq.cluster.cli_cluster import cluster_commands
from raymq.cluster.cli_config import config_commands
from raymq.cluster.cli_context import Finder, json_option
from raymq.cluster.cli_delay import delay_commands
from raymq.cluster.cli_dlq import dlq_commands
from raymq.cluster.cli_doctor import doctor
from raymq.cluster.cli_group import group_commands
from raymq.cluster.cli_health import health
from raymq.cluster.cli_message import message_commands
from raymq.cluster.cli_metrics import metrics_commands
from raymq.cluster.cli_outbox import outbox_commands
from raymq.cluster.cli_store import store_commands
from raymq.cluster.cli_topic import topic_commands
from raymq.cluster.cli_transaction import transaction_commands
from raymq.cluster.cli_worker import worker
from raymq.cluster.log_format import FORMAT_VARIABLE, LogFormat
from raymq.cluster.shell_remedies import in_shell_words

ENTRY_POINTS = "raymq.commands"


class Commands(click.Group):
    """A command group that includes commands from entry points.

    They are loaded when they are called, or when help lists the commands.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the sorted names of our own commands and of the entry points."""
        return sorted({*super().list_commands(ctx), *(entry.name for entry in entry_points(group=ENTRY_POINTS))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return our own command of that name, else the one of an entry point."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        found = next((e for e in entry_points(group=ENTRY_POINTS) if e.name == cmd_name), None)
        command: click.Command | None = None if found is None else found.load()
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--name-servers", envvar="RAYMQ_NAME_SERVERS", help='"host:port;host:port": reach the cluster without Ray.'
)
@click.option(
    "--namespace", envvar="RAYMQ_NAMESPACE", default="raymq", show_default=True, help="The cluster's Ray namespace."
)
@click.option("--address", envvar="RAY_ADDRESS", show_default="auto", help="Address of the cluster's Ray.")
@click.option(
    "--tls-ca-file",
    envvar="RAYMQ_TLS_CA_FILE",
    help="The authority that signed the cluster's certificates; turns TLS on.",
)
@click.option(
    "--tls-cert-file", envvar="RAYMQ_TLS_CERT_FILE", help="The client's certificate, if the cluster requires one."
)
@click.option("--tls-key-file", envvar="RAYMQ_TLS_KEY_FILE", help="Key of the client's certificate.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar=FORMAT_VARIABLE,
    default="text",
    show_default=True,
    help="Form of the log lines of `worker`, `cluster start` and its actors; json: one object per line.",
)
@click.version_option(package_name="raymq")
@click.pass_context
def main_group(
    ctx: click.Context,
    name_servers: str | None,
    namespace: str,
    address: str | None,
    tls_ca_file: str | None,
    tls_cert_file: str | None,
    tls_key_file: str | None,
    log_format: LogFormat,
) -> None:
    """RayMQ: durable topics, retries, delays and dead letters on Ray."""
    if tls_ca_file is None and (tls_cert_file or tls_key_file):
        raise click.UsageError("--tls-cert-file and --tls-key-file need --tls-ca-file, which turns TLS on")
    tls = Tls(tls_ca_file, tls_cert_file, tls_key_file) if tls_ca_file else None
    on_command_line = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if "address" in on_command_line and "name_servers" not in on_command_line:
        name_servers = None  # An option on the command line takes precedence over the environment.
    if "log_format" in on_command_line:
        os.environ[FORMAT_VARIABLE] = log_format  # `ray_runtime` reads it, if the command creates actors
    ctx.obj = Finder(name_servers, namespace, address, tls, _connect, log_format=log_format)


def _connect(finder: Finder) -> Cluster:
    if finder.name_servers:
        return connect(name_servers=finder.name_servers, tls=finder.tls, tracing=finder.tracing)
    if finder.address is None:
        known = cluster_file.load(finder.namespace)
        tls = finder.tls or (None if known is None else known.tls)
        name_servers = None if known is None else cluster_file_check.verified_name_servers(finder.namespace, known, tls)
        if name_servers:
            return connect(name_servers=name_servers, tls=tls, tracing=finder.tracing)
    return connect(finder.namespace, finder.address or "auto", tls=finder.tls, tracing=finder.tracing)


@main_group.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: eval "$(raymq completion bash)"."""
    found = get_completion_class(shell)
    if found is not None:
        click.echo(found(main_group, {}, "raymq", "_RAYMQ_COMPLETE").source())


for _group in (
    cluster_commands,
    broker_commands,
    topic_commands,
    group_commands,
    message_commands,
    metrics_commands,
    outbox_commands,
    delay_commands,
    dlq_commands,
    transaction_commands,
    store_commands,
    config_commands,
    bench_commands,
    doctor,
    health,
    worker,
):
    main_group.add_command(_group)


def main() -> None:
    """Run the console script; `raymq.cluster.command` calls this."""
    run(main_group.main)


def run(command: Callable[..., Any]) -> None:
    """Run a click command and end the process with its exit code.

    RayMQ's errors are printed as one line on stderr.
    """
    if sys.stdout is None:  # Stdout was closed, so the output is discarded.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")  # Characters that the encoding lacks are printed as escapes.
    try:
        try:
            exit_code = command(standalone_mode=False, prog_name="raymq")  # Click returns the exit code of `Exit`.
        finally:
            sys.stdout.flush()  # Report a failed write here, not in the interpreter's shutdown.
        if exit_code:
            sys.exit(exit_code)
    except SystemExit:
        if sys.stdout is not out:  # Click has replaced stdout because the reader closed the pipe, as `head` does.
            _end_quietly()
        raise
    except BrokenPipeError:  # The reader closed the pipe, detected at the flush.
        _end_quietly()
    except OSError as error:
        _end_quietly(f"error: {error}")
    except click.ClickException as error:
        of_raymq = {option for each in main_group.params for option in each.opts}
        if isinstance(error, click.NoSuchOption) and error.option_name in of_raymq:
            option = error.option_name
            error = click.UsageError(f"{option} goes before the command: raymq {option} ... COMMAND", error.ctx)
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except RayMQError as error:
        click.echo(f"error: {in_shell_words(str(error))}", err=True)
        sys.exit(1)


def _end_quietly(text: str | None = None) -> None:
    """End the process although stdout cannot be written; exit code 1 with a message."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    if text is not None:
        with contextlib.suppress(OSError):
            click.echo(text, err=True)
    sys.exit(0 if text is None else 1)


__all__ = ["Commands", "json_option", "main", "main_group", "run"]
