"""The settings of a cluster: a frozen dataclass that is checked before anything starts.

Its keys are those of the files in configs/.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml

from raymq.actors.keeper.group_state import MAX_REPLICAS
from raymq.actors.metrics.prometheus_endpoint import check_installed
from raymq.actors.protocol import APPEND_WAIT_MS, Etcd, Tls
from raymq.storage.config import STORE_SETTINGS, StoreConfig
from raymq.storage.errors import InvalidInput
from raymq.storage.setting_spec import Effect, SettingSpec, describe, settings_of

#: Settings of a store that the cluster decides itself.
_NOT_SETTINGS = frozenset({"store_host", "flush_interval_ms", "flush_least_pages"})
#: Settings of the connection to an etcd, with the fields of `Tls` that they set.
_ETCD_FILES = {f"etcd_{name}": name for name in ("ca_file", "cert_file", "key_file")}
_PATH = "a path, or null"
#: What YAML raises for a value that is not of the type that its tag names.
_VALUE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
#: Settings of features that are not implemented yet.
_NOT_YET = frozenset(
    {
        "access_control",
        "access_administrator_file",
        "tls_mode",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterKeys:
    """The keys of a configuration file besides those of `StoreConfig`."""

    port: Annotated[
        int,
        describe(
            "The first name server's port. 0 takes a free one and keeps it. The argument `port=` takes precedence.",
            effect=Effect.NEW_CLUSTER,
            ge=0,
            le=65_535,
        ),
    ] = 0
    auto_create_topics: Annotated[
        bool,
        describe(
            "Whether the first message to an unknown topic creates it, with 4 queues on the broker that it reaches."
        ),
    ] = False
    append_wait_ms: Annotated[
        int,
        describe(
            "A message that waited longer for its append is refused with SYSTEM_BUSY, so that its "
            "producer takes another broker in time. Raise it on machines that stall.",
            unit="ms",
            ge=1,
        ),
    ] = APPEND_WAIT_MS
    replication: Annotated[
        Literal["async", "sync"],
        describe(
            "Safety of an acknowledged message where groups have several replicas: `async` is as safe as the master's "
            "own disk; `sync` means that every replica in sync has it."
        ),
    ] = "async"
    min_in_sync: Annotated[
        int,
        describe(
            "With `replication: sync`, a group with fewer replicas in sync refuses messages. The master counts.",
            unit="replicas",
            ge=1,
            le=MAX_REPLICAS,
        ),
    ] = 1
    metrics: Annotated[
        Literal["ray", "prometheus", "both", "off"],
        describe(
            "Where brokers publish metrics: `ray`: with Ray's own, on Ray's port; `prometheus`: on a port of each "
            "broker, with RocketMQ's names; `both`; `off`."
        ),
    ] = "ray"
    metrics_host: Annotated[
        str,
        describe(
            "The address on which the metrics' port listens. On 0.0.0.0 Prometheus reaches it from other machines, and "
            "so does everybody else: there is no access control yet.",
            form="an address of the machine",
        ),
    ] = "127.0.0.1"
    metrics_port: Annotated[
        int,
        describe(
            "The port of the metrics; the next brokers of a machine take the next ports. 0 takes any free one.",
            ge=0,
            le=65_535,
        ),
    ] = 0
    console: Annotated[
        bool,
        describe(
            "Whether the cluster serves the web console, on the machine of its first name server and as long as the "
            "cluster runs. `raymq cluster status` shows its address; the token for writes is in `console.token` in "
            "the root."
        ),
    ] = False
    console_host: Annotated[
        str,
        describe(
            "The address on which the console listens. Other machines reach it on 0.0.0.0, and need the token for "
            "reads, too.",
            form="an address of the machine",
        ),
    ] = "127.0.0.1"
    console_port: Annotated[
        int, describe("The port of the console. 0 takes any free one at each start.", ge=0, le=65_535)
    ] = 8400
    console_allowed_hosts: Annotated[
        list[str] | None,
        describe(
            "Further host names under which browsers reach the console, such as that of a proxy before it. It refuses "
            "requests for other names, which protects it from DNS rebinding. With such a name reads need the token.",
            form="a list of host names, or null",
        ),
    ] = None
    etcd_endpoints: Annotated[
        list[str] | str | None,
        describe(
            "Addresses of an etcd (3.4 or later) that stores the master of each group of several replicas; null: "
            "RayMQ starts keepers of its own.",
            form="addresses that begin with http:// or https://, or null",
            effect=Effect.NEW_CLUSTER,
        ),
    ] = None
    etcd_ca_file: Annotated[
        str | None, describe("PEM file of the authority of etcd's certificate; null: those of the system.", form=_PATH)
    ] = None
    etcd_cert_file: Annotated[str | None, describe("PEM file of the client's certificate for etcd.", form=_PATH)] = None
    etcd_key_file: Annotated[str | None, describe("PEM file of that certificate's key.", form=_PATH)] = None
    tls_ca_file: Annotated[
        str | None,
        describe(
            "PEM file of the authority of the servers' and clients' certificates; null: those of the system.",
            form=_PATH,
        ),
    ] = None
    tls_cert_file: Annotated[
        str | None,
        describe(
            "PEM file of the servers' certificate with its chain, at the same path on every machine; null: plain TCP.",
            form=_PATH,
        ),
    ] = None
    tls_key_file: Annotated[str | None, describe("PEM file of that certificate's key.", form=_PATH)] = None
    tls_client_auth: Annotated[
        bool, describe("Whether every client has to show a certificate that the authority of `tls_ca_file` signed.")
    ] = False
    tls_check_host: Annotated[
        bool, describe("Whether a certificate has to name the address that a client connects to.")
    ] = True


_CLUSTER_SETTINGS: Final = settings_of(_ClusterKeys)
#: Every setting of a configuration file.
SETTINGS: Final[Mapping[str, SettingSpec]] = _CLUSTER_SETTINGS | {
    name: setting for name, setting in STORE_SETTINGS.items() if name not in _NOT_SETTINGS
}
_STORE_DEFAULTS = {name: SETTINGS[name].default for name in STORE_SETTINGS if name in SETTINGS}


class _StrictLoader(yaml.SafeLoader):
    """YAML without repeated keys, because a later one would silently replace an earlier one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping; raise ConstructorError with the position of a repeated key."""
        seen: list[Any] = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key} is set twice", key_node.start_mark)
            seen.append(key)
        return super().construct_mapping(node, deep)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The settings of `cluster.start(config=...)`.

    Attributes:
        port: the first name server's, 0 = any free one; the argument of the same name takes precedence.
        auto_create_topics: whether the first message of an unknown topic creates it, with 4 queues.
        append_wait_ms: a broker refuses a message that may have waited longer for processing, with SYSTEM_BUSY.
        replication: the durability of an acknowledged message if groups have several replicas: "async" or "sync".
        min_in_sync: with "sync", a group with fewer in-sync replicas refuses messages; the master counts.
        metrics: where brokers publish metrics: "ray", "prometheus", "both" or "off".
        metrics_host, metrics_port: where the port for Prometheus listens.
        console: whether the cluster serves the web console.
        console_host, console_port: where the console listens.
        console_allowed_hosts: further names of the console in browsers.
        etcd: the etcd of the register of masters if groups have several replicas; None: keepers are created.
        tls: how the sockets of name servers and brokers authenticate; None without a `tls_cert_file`.
        store: the settings of `raymq.storage.config.StoreConfig` that differ from its defaults.
    """

    port: int = 0
    auto_create_topics: bool = False
    append_wait_ms: int = APPEND_WAIT_MS
    replication: str = "async"
    min_in_sync: int = 1
    metrics: str = "ray"
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    console: bool = False
    console_host: str = "127.0.0.1"
    console_port: int = 8400
    console_allowed_hosts: list[str] | None = None
    etcd: Etcd | None = None
    tls: Tls | None = None
    store: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, config: Mapping[str, Any] | str | os.PathLike[str] | ClusterConfig | None) -> ClusterConfig:
        """Read a mapping, or the YAML file at a path; None gives all defaults.

        Raises:
            InvalidInput: an unknown key, an invalid value, or a file that is not a YAML mapping.
        """
        if isinstance(config, ClusterConfig):
            return config
        settings = _read_mapping(config)
        for name, value in settings.items():
            _check(name, value)
        if settings.get("metrics") in {"prometheus", "both"}:
            check_installed()
        if settings.get("console"):
            _check_console_installed()
        for host in settings.get("console_allowed_hosts") or ():
            _check_allowed_host(host)
        own = {name: settings.pop(name, SETTINGS[name].default) for name in _CLUSTER_SETTINGS}
        etcd = _read_etcd({name: own[name] for name in ("etcd_endpoints", *_ETCD_FILES)})
        tls = _read_tls({f.name: own[f"tls_{f.name}"] for f in fields(Tls)})
        StoreConfig(**settings)
        store = {name: value for name, value in settings.items() if value != _STORE_DEFAULTS[name]}
        plain = {f.name: own[f.name] for f in fields(cls) if f.name in own}
        return cls(**plain, etcd=etcd, tls=tls, store=store)

    @classmethod
    def settings(cls, config: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
        """Return the value of every setting by its key.

        The value is that of the configuration, or the default.

        Raises:
            InvalidInput: as `load`.
        """
        cls.load(config)
        return cls.defaults() | _read_mapping(config)

    @staticmethod
    def problems(config: Mapping[str, Any] | str | os.PathLike[str] | None) -> list[InvalidInput]:
        """Return the errors of a configuration, one for each setting.

        The list is empty if the configuration is valid.
        """
        try:
            settings = _read_mapping(config)
        except InvalidInput as error:
            return [error]
        found = []
        for name, value in settings.items():
            try:
                ClusterConfig.load({name: value}) if name in _STORE_DEFAULTS else _check(name, value)
            except InvalidInput as error:
                found.append(error)
        if not found:
            try:
                ClusterConfig.load(settings)
            except InvalidInput as error:
                found.append(error)
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ClusterConfig:
        """Return the settings that `as_dict` encoded."""
        return msgspec.convert(data, cls)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return every key with its default, as the files in configs/ list them."""
        return {name: setting.default for name, setting in SETTINGS.items()}

    @classmethod
    def defaults_of_store(cls) -> dict[str, Any]:
        """Return the settings of a store, with their defaults."""
        return dict(_STORE_DEFAULTS)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for comparisons.

        Without an etcd the key `etcd` is omitted, as in RayMQ 0.1, which did not support etcd.
        """
        data = dataclasses.asdict(self)
        return {name: value for name, value in data.items() if name != "etcd" or value is not None}


def check_port(port: object) -> None:
    """Raise InvalidInput unless `port` is a port or 0."""
    SETTINGS["port"].check(port)


def _check(name: object, value: object) -> None:
    """Raise InvalidInput unless the setting exists and may have this value."""
    if name in _NOT_YET:
        raise InvalidInput(str(name), "not in this version: it is planned, and does nothing yet", value)
    setting = SETTINGS.get(name) if isinstance(name, str) else None
    if setting is None:
        alike = difflib.get_close_matches(str(name).lower(), SETTINGS, 1)
        remedy = f"did you mean {alike[0]}?" if alike else "`raymq config show` lists them"
        raise InvalidInput("config", "only known settings", str(name), remedy=remedy)
    setting.check(value)


def _check_console_installed() -> None:
    """Raise InvalidInput if a package of the console is missing."""
    from raymq.console.console_extra import missing_package

    if missing := missing_package():
        raise InvalidInput(
            "console",
            f"false without {missing}",
            True,
            remedy='pip install "raymq[console]" on every machine of the cluster',
        )


def _check_allowed_host(host: str) -> None:
    """Raise InvalidInput unless browsers can send this host."""
    from raymq.console.access_guard import checked_host

    checked_host(host, "console_allowed_hosts")


def _read_etcd(settings: Mapping[str, Any]) -> Etcd | None:
    """Return the settings that begin with etcd_, None without endpoints."""
    value = settings["etcd_endpoints"]
    endpoints = value.split(",") if isinstance(value, str) else value
    files = {field: settings[name] for name, field in _ETCD_FILES.items() if settings[name] is not None}
    if endpoints is None and not files:
        return None
    if not endpoints or not all(each.strip().startswith(("http://", "https://")) for each in endpoints):
        raise InvalidInput("etcd_endpoints", "addresses that begin with http:// or https://", value)
    if ("cert_file" in files) != ("key_file" in files):
        raise InvalidInput("etcd_cert_file", "a certificate, and its key as etcd_key_file", files.get("cert_file"))
    return Etcd(tuple(each.strip() for each in endpoints), Tls(**files) if files else None)


def _read_tls(settings: Mapping[str, Any]) -> Tls | None:
    """Return the settings that begin with tls_, None without a certificate."""
    tls = Tls(**settings)
    if tls == Tls():
        return None
    if tls.cert_file is None or tls.key_file is None:
        raise InvalidInput("tls_cert_file", "a certificate, and its key as tls_key_file", tls.cert_file)
    if tls.client_auth and tls.ca_file is None:
        raise InvalidInput(
            "tls_ca_file", "the authority of the clients' certificates, for tls_client_auth", tls.ca_file
        )
    return tls


def _read_mapping(config: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return a configuration's keys and values without checking them."""
    if isinstance(config, str | os.PathLike):
        config = _read(Path(config))
    elif config is not None and not isinstance(config, Mapping):
        raise InvalidInput("config", "a mapping, or the path of a YAML file", config)
    settings = dict(config or {})
    hour = settings.get("delete_at_hour")
    if isinstance(hour, int) and not isinstance(hour, bool):  # YAML reads 04 without quotation marks as a number
        settings["delete_at_hour"] = f"{hour:02}"
    return settings


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)  # noqa: S506 - it is a SafeLoader
    except (OSError, RecursionError, yaml.YAMLError, *_VALUE_ERRORS) as error:
        raise InvalidInput("config", "a readable YAML file", f"{path}: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InvalidInput("config", "a YAML mapping", f"{path}: {type(data).__name__}")
    return data
