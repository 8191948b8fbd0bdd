"""The certificates of all listeners with TLS: read at the start, and again when a file or a setting changes.

Files are compared by their time, size and inode every few seconds, through symbolic links, so a Secret that Kubernetes
replaces is noticed as well. A new certificate must be usable now, and, as in Kafka, have the subject of the old one and
all its names (`ssl.allow.dn.changes`, `ssl.allow.san.changes`). What is refused is logged once, counted, and tried
again, since a certificate becomes valid with time; the old one stays in use.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from cryptography import x509

from ...config.addresses import is_prepared
from ...config.config import BrokerConfig, Listener, ListenerConfig
from ...config.config_types import ConfigError
from ...config.tls_keys import TLS_KEYS
from ..file_states import file_states
from .contexts import client_context, server_context
from .distinguished_name import subject
from .keystores import KeyStore, locations, read_keystore, read_truststore
from .listener_tls import CertificateState, ListenerTls
from .principal_mapping import KEY as MAPPING
from .principal_mapping import PrincipalMapping

WATCH_S = 5.0
DAY_S = 86_400

log = logging.getLogger(__name__)


class _Read(NamedTuple):
    """What was read, and from what."""

    seen: Any
    keys: KeyStore
    server: ssl.SSLContext
    client: ssl.SSLContext | None


class _Watched:
    """A listener, and the state of its certificate."""

    def __init__(self, values: ListenerConfig, *, is_for_brokers: bool, has_sasl: bool) -> None:
        self.values = values
        self.has_sasl = has_sasl
        self.is_for_brokers = is_for_brokers
        mapping = PrincipalMapping(values.text(MAPPING))
        self.principal = lambda der: principal(der, mapping)
        self.read = _read(values, is_for_brokers=is_for_brokers, has_sasl=has_sasl)
        self.tls = ListenerTls(values.listener, self.read.server, self.read.client, self.principal)
        self.reloads = self.refused = 0
        self.problem: str | None = None

    def take(self, read: _Read) -> None:
        self.read = read
        self.tls.server, self.tls.client = read.server, read.client
        self.reloads += 1
        self.problem = None

    def refuse(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self.refused += 1
            log.error(
                "listener %s: the new certificate is refused, and the old one stays in use: %s",
                self.values.listener,
                problem,
            )


class Certificates:
    """The certificates of a broker's listeners.

    A listener for brokers in plain text that has keys for TLS of its own is among them: with these, this broker
    connects to those whose listener of the same name has TLS already, so a cluster may change it one broker after the
    other.
    """

    def __init__(self, config: BrokerConfig, listeners: Iterable[Listener], inter_broker: str) -> None:
        """Blocking. Raises ConfigError."""
        self._config = config
        self._watched = {
            listener.name: _Watched(
                config.of_listener(listener.name),
                is_for_brokers=listener.name == inter_broker,
                has_sasl=listener.has_sasl,
            )
            for listener in listeners
            if listener.is_encrypted or (listener.name == inter_broker and is_prepared(config, inter_broker))
        }
        self._reloading = asyncio.Lock()
        for watched in self._watched.values():
            if problem := watched.read.keys.problem(datetime.fromtimestamp(time.time(), UTC)):
                log.error(
                    "listener %s: %s: clients that verify it cannot connect; replace the file, no restart is needed",
                    watched.values.listener,
                    problem,
                )

    @property
    def by_listener(self) -> dict[str, ListenerTls]:
        return {name: watched.tls for name, watched in self._watched.items()}

    def states(self) -> Iterator[CertificateState]:
        now = datetime.fromtimestamp(time.time(), UTC)
        for name, watched in self._watched.items():
            days = (watched.read.keys.expires_at - now).total_seconds() / DAY_S
            yield CertificateState(name, days, watched.reloads, watched.refused)

    def check(self, config: BrokerConfig) -> None:
        """Whether a configuration's certificates could replace these. Blocking. Raises ConfigError."""
        for name, watched in self._watched.items():
            values = config.of_listener(name)
            if _settings(values) != watched.read.seen[0]:
                _replacement(watched, values)

    async def watch(self) -> None:
        """Reload whenever a file or a setting changes."""
        while True:
            await self.reload()
            await asyncio.sleep(WATCH_S)

    async def reload(self) -> None:
        """Read what has changed."""
        async with self._reloading:
            for watched in self._watched.values():
                await self._reload(watched)

    async def _reload(self, watched: _Watched) -> None:
        if await asyncio.to_thread(_seen, watched.values) == watched.read.seen:
            watched.problem = None
            return
        try:
            read = await asyncio.to_thread(_replacement, watched, watched.values)
        except ConfigError as error:
            watched.refuse(str(error))
            return
        watched.take(read)
        log.info(
            "listener %s: new certificate %s, valid until %s",
            watched.values.listener,
            subject(read.keys.certificate),
            read.keys.expires_at.isoformat(),
        )


def principal(der: bytes, mapping: PrincipalMapping) -> str:
    """The principal of the client with this certificate. Raises ValueError."""
    return f"User:{mapping.name(subject(x509.load_der_x509_certificate(der)))}"


def _read(values: ListenerConfig, *, is_for_brokers: bool, has_sasl: bool) -> _Read:
    seen = _seen(values)  # before the files are read: a change meanwhile is one
    keys, trusted = read_keystore(values), read_truststore(values)
    if keys is None:
        raise ConfigError(f"listener {values.listener} has no certificate: set ssl.keystore.location")
    server = server_context(values, keys, trusted, has_sasl=has_sasl)
    return _Read(seen, keys, server, client_context(values, keys, trusted) if is_for_brokers else None)


def _replacement(watched: _Watched, values: ListenerConfig) -> _Read:
    """A new certificate that may replace the present one. Raises ConfigError."""
    read = _read(values, is_for_brokers=watched.is_for_brokers, has_sasl=watched.has_sasl)
    old, new = watched.read.keys, read.keys
    if problem := new.problem(datetime.fromtimestamp(time.time(), UTC)):
        raise ConfigError(problem)
    before, after = subject(old.certificate), subject(new.certificate)
    if before != after and not values.flag("ssl.allow.dn.changes"):
        raise ConfigError(
            f"its subject is {after}, not {before}: set ssl.allow.dn.changes=true if that is meant"
        )
    if (lost := old.names() - new.names()) and not values.flag("ssl.allow.san.changes"):
        raise ConfigError(
            f"it lacks the names {', '.join(sorted(lost))}: set ssl.allow.san.changes=true if that is meant"
        )
    return read


def _settings(values: ListenerConfig) -> tuple[object, ...]:
    found = (values[key.name] for key in TLS_KEYS if key.of_listener)
    return tuple(tuple(value) if isinstance(value, list) else value for value in found)


def _seen(values: ListenerConfig) -> tuple[object, ...]:
    """The settings, and how the files are. Blocking."""
    return _settings(values), file_states(locations(values))
