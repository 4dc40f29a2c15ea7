"""A cluster's settings: one frozen dataclass, the keys of the files in configs/, checked before anything starts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from raymq.actors.keeper.group_state import MODES, MOST_REPLICAS, ReplicationPolicy
from raymq.actors.protocol import APPEND_WAIT_MS, Etcd, Tls
from raymq.storage.config import StoreConfig
from raymq.storage.errors import InvalidInput

#: Settings of a store that the cluster decides itself.
_NOT_SETTINGS = frozenset({"store_host", "flush_interval_ms", "flush_least_pages"})
#: Settings of the sockets, by the fields of `Tls` that they are.
_TLS_FIELDS = {f"tls_{f.name}": f for f in fields(Tls)}
#: Settings of the way to an etcd, by the fields of `Tls` that they are.
_ETCD_FILES = {f"etcd_{name}": name for name in ("ca_file", "cert_file", "key_file")}
_STORE_DEFAULTS = {f.name: f.default for f in fields(StoreConfig) if f.name not in _NOT_SETTINGS}
_PROMISE = ReplicationPolicy()
#: What YAML raises for a value that is not of the type that its tag names.
_OF_VALUES = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
#: Settings of what is not built yet.
_NOT_YET = frozenset(
    {
        "transaction_check_after",
        "transaction_check_every",
        "access_control",
        "access_administrator_file",
        "tls_mode",
    }
)


class _StrictLoader(yaml.SafeLoader):
    """YAML in which no key stands twice: the later one would win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As usual, or a ConstructorError that names the place."""
        seen: list[Any] = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key} stands twice", key_node.start_mark)
            seen.append(key)
        return super().construct_mapping(node, deep)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What `cluster.start(config=...)` may set.

    Attributes:
        port: the first name server's, 0 = any free one; the argument of the same name wins.
        auto_create_topics: whether the first message of an unknown topic makes it, with 4 queues.
        append_wait_ms: a broker refuses what may have waited longer to be looked at, with SYSTEM_BUSY.
        replication: what an acknowledged message is, where groups have several replicas: "async" or "sync".
        min_in_sync: with "sync", fewer replicas in sync than this take no message; the master counts.
        etcd: the etcd that the register of masters is on where groups have several replicas; None: keepers are made.
        tls: how the sockets of name servers and brokers prove who they are; None without a `tls_cert_file`.
        store: the settings of `raymq.storage.config.StoreConfig` that differ from its defaults.
    """

    port: int = 0
    auto_create_topics: bool = False
    append_wait_ms: int = APPEND_WAIT_MS
    replication: str = _PROMISE.mode
    min_in_sync: int = _PROMISE.min_in_sync
    etcd: Etcd | None = None
    tls: Tls | None = None
    store: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, config: Mapping[str, Any] | str | os.PathLike[str] | ClusterConfig | None) -> ClusterConfig:
        """Read a mapping, or the YAML file at a path; None is all defaults.

        Raises:
            InvalidInput: an unknown key, a value that breaks its rule, a file that is no YAML mapping.
        """
        if isinstance(config, ClusterConfig):
            return config
        if isinstance(config, str | os.PathLike):
            config = _read(Path(config))
        elif config is not None and not isinstance(config, Mapping):
            raise InvalidInput("config", "a mapping, or the path of a YAML file", config)
        given = dict(config or {})
        hour = given.get("delete_at_hour")
        if isinstance(hour, int) and not isinstance(hour, bool):  # YAML reads 04 without quotation marks as a number
            given["delete_at_hour"] = f"{hour:02}"
        auto_create = given.pop("auto_create_topics", False)
        if not isinstance(auto_create, bool):
            raise InvalidInput("auto_create_topics", "true or false", auto_create)
        append_wait_ms = given.pop("append_wait_ms", APPEND_WAIT_MS)
        if not isinstance(append_wait_ms, int) or isinstance(append_wait_ms, bool) or append_wait_ms < 1:
            raise InvalidInput("append_wait_ms", "a whole number of milliseconds, at least 1", append_wait_ms)
        replication = given.pop("replication", _PROMISE.mode)
        if replication not in MODES:
            raise InvalidInput("replication", " or ".join(MODES), replication)
        min_in_sync = given.pop("min_in_sync", _PROMISE.min_in_sync)
        if type(min_in_sync) is not int or not 1 <= min_in_sync <= MOST_REPLICAS:
            raise InvalidInput("min_in_sync", f"1..{MOST_REPLICAS}", min_in_sync)
        port = given.pop("port", 0)
        check_port(port)
        etcd = _read_etcd({name: given.pop(name) for name in ("etcd_endpoints", *_ETCD_FILES) if name in given})
        tls = _read_tls({name: given.pop(name) for name in _TLS_FIELDS if name in given})
        for name in _NOT_YET & given.keys():
            raise InvalidInput(name, "not in this version: it is planned, and does nothing yet", given[name])
        unknown = sorted(set(given) - set(_STORE_DEFAULTS), key=str)
        if unknown:
            allowed = ", ".join(cls.defaults())
            raise InvalidInput("config", f"only the keys {allowed}", ", ".join(map(str, unknown)))
        try:
            StoreConfig(**given)
        except TypeError as error:
            raise InvalidInput("config", "values of the settings' types", str(error)) from error
        store = {name: value for name, value in given.items() if value != _STORE_DEFAULTS[name]}
        return cls(port, auto_create, append_wait_ms, replication, min_in_sync, etcd, tls, store)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> ClusterConfig:
        """The reverse of `as_dict`."""
        etcd = told.get("etcd")
        if etcd is not None:
            files = None if etcd["tls"] is None else Tls(**etcd["tls"])
            etcd = Etcd(tuple(etcd["endpoints"]), files)
        tls = None if told["tls"] is None else Tls(**told["tls"])
        return cls(**{**told, "etcd": etcd, "tls": tls})

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every key with its default, as the files in configs/ list them."""
        tls = {name: field.default for name, field in _TLS_FIELDS.items()}
        return {
            "port": 0,
            "auto_create_topics": False,
            "append_wait_ms": APPEND_WAIT_MS,
            "replication": _PROMISE.mode,
            "min_in_sync": _PROMISE.min_in_sync,
            "etcd_endpoints": None,
            **dict.fromkeys(_ETCD_FILES),
            **tls,
            **_STORE_DEFAULTS,
        }

    @classmethod
    def defaults_of_store(cls) -> dict[str, Any]:
        """The settings of a store, with their defaults."""
        return dict(_STORE_DEFAULTS)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for comparing; without an etcd as RayMQ 0.1 made it, which knew of none."""
        told = dataclasses.asdict(self)
        return {name: value for name, value in told.items() if name != "etcd" or value is not None}


def check_port(port: object) -> None:
    """InvalidInput unless `port` is one, or 0."""
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 65_536:
        raise InvalidInput("port", "0..65535", port)


def _read_etcd(given: Mapping[str, Any]) -> Etcd | None:
    """The settings that begin with etcd_; None where no endpoints are named."""
    told = given.get("etcd_endpoints")
    endpoints = told.split(",") if isinstance(told, str) else told
    files = {_ETCD_FILES[name]: value for name, value in given.items() if name in _ETCD_FILES and value is not None}
    if endpoints is None and not files:
        return None
    if (
        not isinstance(endpoints, list | tuple)
        or not endpoints
        or not all(isinstance(each, str) and each.strip().startswith(("http://", "https://")) for each in endpoints)
    ):
        raise InvalidInput("etcd_endpoints", "addresses that begin with http:// or https://", told)
    for name, value in files.items():
        if not isinstance(value, str):
            raise InvalidInput(f"etcd_{name}", "a path", value)
    if ("cert_file" in files) != ("key_file" in files):
        raise InvalidInput("etcd_cert_file", "a certificate, and its key as etcd_key_file", files.get("cert_file"))
    return Etcd(tuple(each.strip() for each in endpoints), Tls(**files) if files else None)


def _read_tls(given: Mapping[str, Any]) -> Tls | None:
    """The settings that begin with tls_; None where there is no certificate."""
    for name, value in given.items():
        kind = bool if isinstance(_TLS_FIELDS[name].default, bool) else str
        if not isinstance(value, kind) and value is not _TLS_FIELDS[name].default:
            raise InvalidInput(name, "true or false" if kind is bool else "a path", value)
    tls = Tls(**{_TLS_FIELDS[name].name: value for name, value in given.items()})
    if tls == Tls():
        return None
    if tls.cert_file is None or tls.key_file is None:
        raise InvalidInput("tls_cert_file", "a certificate, and its key as tls_key_file", tls.cert_file)
    if tls.client_auth and tls.ca_file is None:
        raise InvalidInput("tls_ca_file", "who signs the certificates of clients, for tls_client_auth", tls.ca_file)
    return tls


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)  # noqa: S506 - it is a SafeLoader
    except (OSError, RecursionError, yaml.YAMLError, *_OF_VALUES) as error:
        raise InvalidInput("config", "a readable YAML file", f"{path}: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InvalidInput("config", "a YAML mapping", f"{path}: {type(data).__name__}")
    return data
