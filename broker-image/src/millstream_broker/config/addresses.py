"""The addresses a broker listens on, and those it advertises."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import replace

from millstream_process.listening import is_wildcard

from .config import BrokerConfig, Listener, parse_address, parse_listeners
from .config_types import ConfigError
from .listener_keys import prefix
from .sasl_keys import HANDLER, JAAS, JWKS_URL, OAUTHBEARER, PLAIN, UNSECURED
from .tls_keys import CERTIFICATE, TRUST


class Addresses:
    """Read the addresses from the configuration. Raises ConfigError."""

    def __init__(self, config: BrokerConfig) -> None:
        self.listeners = parse_listeners(config, "listeners")
        self._advertised = parse_listeners(config, "advertised.listeners")
        _check(config, self.listeners, self._advertised)
        self.http = parse_address("http.listener", config.text("http.listener"))
        name = _inter_broker_name(config)
        self.inter_broker = name or self.listeners[0].name
        """Name of the listener for traffic between brokers; default: the first."""

    def advertised(self, bound: Iterable[Listener]) -> tuple[Listener, ...]:
        """The advertised listeners: port 0 becomes the bound port, a wildcard address becomes this host."""
        by_name = {listener.name: listener for listener in self._advertised}
        advertised = []
        for listener in bound:
            configured = by_name.get(listener.name, listener)
            host = socket.gethostname() if is_wildcard(configured.host) else configured.host
            advertised.append(replace(configured, host=host, port=configured.port or listener.port))
        return tuple(advertised)


def _check(config: BrokerConfig, listeners: list[Listener], advertised: list[Listener]) -> None:
    names = {listener.name for listener in listeners}
    if not names:
        raise ConfigError("listeners=: expected at least one, as in PLAINTEXT://127.0.0.1:9092")
    for listener in advertised:
        if listener.name not in names:
            raise ConfigError(f"advertised.listeners={listener}: {listener.name} is not among `listeners`")
        if is_wildcard(listener.host):
            raise ConfigError(
                f"advertised.listeners={listener}: expected an address that clients can connect to"
            )
    inter_broker = _inter_broker_name(config)
    if inter_broker is not None and inter_broker not in names:
        key = next(key for key in _OF_BROKERS if config.is_set(key))
        raise ConfigError(f"{key}={inter_broker}: expected one of {', '.join(sorted(names))}", key)
    for listener in listeners:
        _check_security(config, listener, is_for_brokers=listener.name == inter_broker)


_OF_BROKERS = ("inter.broker.listener.name", "security.inter.broker.protocol")


def _inter_broker_name(config: BrokerConfig) -> str | None:
    """The configured listener for brokers, if any. Raises ConfigError."""
    given = [key for key in _OF_BROKERS if config.is_set(key)]
    if len(given) > 1:
        raise ConfigError(f"Only one of {' and '.join(_OF_BROKERS)} may be set", *given)
    return config.text(given[0]) if given else None


def _check_security(config: BrokerConfig, listener: Listener, *, is_for_brokers: bool) -> None:
    """Whether a listener has what its security protocol needs. Brokers need no mechanism of clients."""
    values = config.of_listener(listener.name)
    what = f"listener {listener.name} has the security protocol {listener.protocol}"
    if listener.is_encrypted and all(values[key] is None for key in CERTIFICATE):
        keys = " or ".join(prefix(listener.name) + key for key in CERTIFICATE)
        raise ConfigError(f"{what}, and no certificate: set {keys}", *CERTIFICATE)
    mechanisms = "sasl.enabled.mechanisms"
    if listener.has_sasl and not is_for_brokers and not values.strings(mechanisms):
        raise ConfigError(f"{what}, and no mechanism: set {prefix(listener.name)}{mechanisms}", mechanisms)
    if listener.has_sasl and PLAIN in values.strings(mechanisms):
        users = prefix(listener.name, PLAIN) + JAAS
        if not config.is_set(users):
            raise ConfigError(
                f"listener {listener.name} has the mechanism {PLAIN}, and no users: set {users}", JAAS
            )
    if listener.has_sasl and OAUTHBEARER in values.strings(mechanisms):
        _check_tokens(config, listener)


def is_prepared(config: BrokerConfig, listener: str) -> bool:
    """Whether a listener has keys of its own for TLS, whatever its security protocol is now."""
    values, own = config.of_listener(listener), prefix(listener)
    stores = (CERTIFICATE, TRUST)
    return all(any(values.name_of(key) == own + key for key in keys) for keys in stores)


def _check_tokens(config: BrokerConfig, listener: Listener) -> None:
    values, beginning = config.of_listener(listener.name, OAUTHBEARER), prefix(listener.name, OAUTHBEARER)
    if (values[JWKS_URL] is None) != (values[HANDLER] == UNSECURED):
        raise ConfigError(
            f"listener {listener.name} has the mechanism {OAUTHBEARER}: set {beginning}{JWKS_URL} to where the"
            f" provider's keys are, or, only for tests without signatures, {beginning}{HANDLER}={UNSECURED}",
            JWKS_URL,
            HANDLER,
        )
