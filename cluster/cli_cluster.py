"""The commands `raymq cluster ...`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click
import psutil
from rich.console import Group

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.naming import host_resource, is_name_server_name
from raymq.client import Admin, ClusterInfo, RayMQError
from raymq.client.plain_data import to_plain_data
from raymq.cluster import bootstrap, cluster_file
from raymq.cluster.cli_context import Finder, json_option
from raymq.cluster.cluster_file_check import verified_name_servers
from raymq.cluster.console_entry import find_console
from raymq.cluster.detached_process import LogFile, await_process_end, start_detached
from raymq.cluster.host_identity import check_mounted, host_identity
from raymq.cluster.log_format import LogFormat, formatter
from raymq.cluster.output import (
    broker_fields,
    broker_rows,
    print_fields,
    print_json,
    print_rows,
    rows_table,
)
from raymq.cluster.watch import show, watch_option

_product_log: Final = logging.getLogger("raymq")

_POLL_SECONDS: Final = 0.1
#: The seconds that an interrupted start may take to finish, and then its actors to stop.
_FINISH_SECONDS: Final = 5.0
_STOP_SECONDS: Final = 3.0
#: The seconds that the process of the cluster's Ray may take to end after the cluster.
_END_SECONDS: Final = 15.0
#: The interval at which this process checks whether the cluster was stopped from elsewhere.
_GONE_SECONDS: Final = 1.0


@click.group("cluster")
def cluster_commands() -> None:
    """Start, inspect and stop a cluster."""


@cluster_commands.command("start")
@click.option("--brokers", default=2, show_default=True)
@click.option("--replicas", default=1, show_default=True, help="Copies of each broker group, the master included.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("data"), show_default=True)
@click.option("--name-servers", "count", default=1, show_default=True, help="How many name servers.")
@click.option("--port", default=0, show_default="any free one", help="Port of the first name server on each machine.")
@click.option("--config", type=click.Path(exists=True, path_type=Path), help="YAML settings; see configs/.")
@click.option("--hosts", default=1, show_default=True, help="Wait until the Ray cluster has this many machines.")
@click.option("--hosts-timeout", default=600.0, show_default=True, help="Seconds to wait for the machines.")
@click.option("--detach", is_flag=True, help="Leave it running in the background; raymq cluster stop ends it.")
@click.option("--log", type=click.Path(path_type=Path), hidden=True, help="Log file of a detached cluster.")
@json_option
@click.pass_obj
def start_cluster(
    finder: Finder,
    /,
    brokers: int,
    root: Path,
    count: int,
    detach: bool,
    log: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Start a cluster on the Ray of this machine, or on a new Ray.

    A new Ray runs in this process until Ctrl-C. If the cluster runs already, it is left unchanged, and its missing
    parts are created.
    """
    finder.refuse_addresses("cluster start")
    options["name_servers"] = count
    if detach:
        _start_detached(finder, {"brokers": brokers, "root": root, **options}, as_json=as_json)
        return

    def live(stop_requested: threading.Event, started: threading.Event) -> bool:
        progress = logging.getLogger(bootstrap.__name__)
        progress.setLevel(logging.INFO)
        to_terminal, log_file = _log_start(finder.log_format, log)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mq = bootstrap.start(brokers, root, finder.namespace, **options)
            started.set()
        for each in caught:
            if issubclass(each.category, UserWarning):
                click.echo(f"warning: {each.message}", err=True)
        try:
            if is_up := not stop_requested.is_set():
                fields: dict[str, Any] = {"namespace": finder.namespace, "name_servers": mq.name_servers}
                if log_file is not None:
                    owns = mq.owns_ray
                    fields |= {"pid": os.getpid() if owns else None, "log": str(log) if owns else None}
                if console := find_console(mq):
                    fields["console"] = console
                if mq.owns_ray:
                    cluster_file.save_process(finder.namespace, os.getpid())
                print_fields(fields, as_json=as_json)
                sys.stdout.flush()
            if mq.owns_ray:
                if log_file is not None:
                    _product_log.removeHandler(to_terminal)
                    log_file.take_outputs()
                    progress.info("up: namespace %s, name servers %s", finder.namespace, ";".join(mq.name_servers))
                elif is_up:
                    click.echo("Ray runs in this process: Ctrl-C stops the cluster.", err=True)
                _wait_for_stop(finder.namespace, stop_requested)
        finally:
            if mq.owns_ray or (stop_requested.is_set() and mq.is_new):  # A cluster that ran before is left unchanged.
                mq.stop()
            mq.close()
        return is_up

    _run_without_signals(live, finder.namespace)


def _log_start(log_format: LogFormat, log: Path | None) -> tuple[logging.Handler, LogFile | None]:
    """Log the product's lines to the terminal, and all lines to `log` if given."""
    to_terminal = logging.StreamHandler()
    to_terminal.setFormatter(None if log_format == "text" else formatter(log_format))
    _product_log.addHandler(to_terminal)
    log_file = None if log is None else LogFile(log)
    if log_file is not None:
        log_file.setFormatter(formatter(log_format))
        logging.getLogger().addHandler(log_file)
    return to_terminal, log_file


def _start_detached(finder: Finder, options: dict[str, Any], *, as_json: bool) -> None:
    """Run the same command in the background, and print its result once it is up."""
    try:
        log = cluster_file.log_file(finder.namespace)
    except OSError as error:
        raise InvalidInput(
            cluster_file.HOME_VARIABLE, "a writable folder that belongs to this user", str(error)
        ) from error
    known = cluster_file.load(finder.namespace)
    if known is not None and known.pid is not None and verified_name_servers(finder.namespace, known, known.tls):
        raise BrokerUnavailable(
            "cluster",
            f"a cluster runs in namespace {finder.namespace} already, in process {known.pid}",
            remedy="stop it: raymq cluster stop; or start this one with another --namespace and --root",
        )
    in_form = [] if finder.log_format == "text" else ["--log-format", finder.log_format]
    command = ["--namespace", finder.namespace, *in_form, "cluster", "start", "--json", "--log", str(log)]
    for name, value in options.items():
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    click.echo(f"starting in the background, log: {log}", err=True)
    print_fields(json.loads(start_detached(command)), as_json=as_json)


def _run_without_signals(live: Callable[[threading.Event, threading.Event], bool], namespace: str) -> None:
    """Run `live` on a separate thread, where signals do not interrupt Ray's code.

    An interrupt in Ray's code would end in a SIGSEGV. SIGINT, SIGTERM, and SIGHUP unless `nohup` ignores it, set the
    first event that `live` receives. `live` returns True if it did its work before a signal. Otherwise the process ends
    with the signal's usual exit code. A start that has not set the second event within `_FINISH_SECONDS` of the signal
    is aborted.
    """
    # Ray reads the variable once, when it is imported.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    stop_requested, started, ended_by = threading.Event(), threading.Event(), 0

    def on_signal(which: int, _: object) -> None:
        nonlocal ended_by
        ended_by = ended_by or which
        stop_requested.set()

    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if which != signal.SIGHUP or signal.getsignal(which) != signal.SIG_IGN:
            signal.signal(which, on_signal)
    with ThreadPoolExecutor(1, "raymq-cluster") as executor:
        living = executor.submit(live, stop_requested, started)
        while not living.done() and not stop_requested.wait(_POLL_SECONDS):
            pass
        if not living.done():
            try:
                click.echo("stopping", err=True)
            except OSError:  # The terminal is closed: buffered output for it would fail again at the exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            until = time.monotonic() + _FINISH_SECONDS
            while not living.done() and not started.wait(_POLL_SECONDS):
                if time.monotonic() > until:
                    _abort_start(namespace, 128 + ended_by)
        if not living.result():
            sys.exit(128 + ended_by)


def _abort_start(namespace: str, exit_code: int) -> None:
    """End this process during a start: stop its actors cleanly, kill its Ray."""
    from raymq.cluster import cluster_launch, ray_runtime
    from raymq.cluster.cluster_stop import stop_actors

    cluster_launch.skip_rollback()
    with contextlib.suppress(RayMQError):
        if ray_runtime.is_embedded():
            stop_actors(namespace, _STOP_SECONDS)
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(children, timeout=1.0)
    os._exit(exit_code)


def _wait_for_stop(namespace: str, stop_requested: threading.Event) -> None:
    """Wait until a signal comes, or another process has stopped the cluster."""
    from raymq.cluster.cluster_launch import names

    while not stop_requested.wait(_GONE_SECONDS) and any(map(is_name_server_name, names(namespace))):
        pass


@cluster_commands.command("host-resources")
@click.option("--root", type=click.Path(path_type=Path), default=Path("data"), show_default=True)
@click.option("--mounted", is_flag=True, help="Refuse a root that is not on a volume of its own.")
def host_resources(root: Path, mounted: bool) -> None:
    """Print, as JSON, the value of `ray start --resources` for the machine with ROOT.

    The resource's name is stored in the root, so that the brokers return to this machine even if its host name changes.
    """
    root = root.expanduser().absolute()
    if mounted:
        check_mounted(root)
    print_json({host_resource(host_identity(root, socket.gethostname())): 1})


@cluster_commands.command("status")
@watch_option
@json_option
@click.pass_obj
def cluster_status(finder: Finder, as_json: bool, watch: float | None) -> None:
    """Show the brokers, name servers and scheduler as they report now, and the console's address."""
    with finder.connect() as mq, Admin(mq) as admin:
        show(
            lambda: _status_fields(admin.cluster_info(), find_console(mq)),
            _status_tables,
            as_json=as_json,
            seconds=watch,
        )


def _status_fields(info: ClusterInfo, console: str | None) -> dict[str, Any]:
    data: dict[str, Any] = to_plain_data(info) | {"brokers": [broker_fields(broker) for broker in info.brokers]}
    if not info.keepers:  # A cluster with one replica per group has no keepers.
        del data["keepers"]
    return data if console is None else data | {"console": console}


def _status_tables(fields: dict[str, Any]) -> Group:
    """Return the tables of a status for people."""
    scheduler = fields["scheduler"]
    columns = ("keeper", "state", "voter", "address", "pid")
    keepers = [{"keeper": each["id"], **each} for each in fields.get("keepers", ())]
    return Group(
        rows_table(broker_rows(fields["brokers"]), "no broker"),
        rows_table(fields["name_servers"], "no name server"),
        *([rows_table([{name: each[name] for name in columns} for each in keepers])] if keepers else []),
        rows_table([{"scheduler_pid": scheduler["pid"], "lateness": scheduler["lateness"]}]),
        *([rows_table([{"console": fields["console"]}])] if "console" in fields else []),
    )


@cluster_commands.command("leave")
@click.option("--timeout", default=60.0, show_default=True, help="Seconds for the whole command.")
@click.option("--dry-run", is_flag=True, help="Show which replicas would become master, and change nothing.")
@json_option
@click.pass_obj
def leave_cluster(finder: Finder, timeout: float, dry_run: bool, as_json: bool) -> None:
    """Prepare this machine for shutdown: hand its masters over, and close its stores.

    Replicas on other machines become masters. The brokers of this machine return when the machine does. The exit code
    is 1 if a broker was not handed over or not closed cleanly.
    """
    finder.refuse_addresses("cluster leave")
    from raymq.cluster.host_leave import leave_host

    with bootstrap.connect(finder.namespace, finder.address or "auto", tls=finder.tls) as mq:
        results = [to_plain_data(each) for each in leave_host(mq, timeout, dry_run=dry_run)]
    print_rows(results, as_json=as_json, empty="no broker on this machine")
    if any(each["trouble"] for each in results):
        sys.exit(1)


@cluster_commands.command("stop")
@click.option("--timeout", default=30.0, show_default=True, help="Seconds for a clean stop.")
@click.option("--dry-run", is_flag=True, help="Show what would be stopped, and change nothing.")
@json_option
@click.pass_obj
def stop_cluster(finder: Finder, timeout: float, dry_run: bool, as_json: bool) -> None:
    """Stop every actor of the cluster cleanly. The data stay."""
    finder.refuse_addresses("cluster stop")
    known = cluster_file.load(finder.namespace)
    with finder.with_start_hint():
        brokers = bootstrap.running_brokers(finder.namespace, finder.address or "auto")
    if not dry_run:
        bootstrap.stop(finder.namespace, finder.address or "auto", timeout)
        if known is not None and known.pid is not None:  # That process detects itself that its cluster is gone.
            await_process_end(known.pid, _END_SECONDS)
    print_fields({"namespace": finder.namespace, "brokers": brokers, "stopped": not dry_run}, as_json=as_json)
