"""The addresses a broker listens on, and those it advertises."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import replace

from millstream_process.listening import is_wildcard

from .config import BrokerConfig, Listener, parse_address, parse_listeners
from .config_types import ConfigError


class Addresses:
    """Read the addresses from the configuration. Raises ConfigError."""

    def __init__(self, config: BrokerConfig) -> None:
        self.listeners = parse_listeners(config, "listeners")
        self._advertised = parse_listeners(config, "advertised.listeners")
        _check(config, self.listeners, self._advertised)
        self.http = parse_address("http.listener", config.text("http.listener"))
        name = config["inter.broker.listener.name"]
        self.inter_broker = name if isinstance(name, str) else self.listeners[0].name
        """Name of the listener for traffic between brokers; default: the first."""

    def advertised(self, bound: Iterable[Listener]) -> tuple[Listener, ...]:
        """The advertised listeners: port 0 becomes the bound port, a wildcard address becomes this host."""
        by_name = {listener.name: listener for listener in self._advertised}
        told = []
        for listener in bound:
            one = by_name.get(listener.name, listener)
            host = socket.gethostname() if is_wildcard(one.host) else one.host
            told.append(replace(one, host=host, port=one.port or listener.port))
        return tuple(told)


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
    inter_broker = config["inter.broker.listener.name"]
    if inter_broker is not None and inter_broker not in names:
        raise ConfigError(
            f"inter.broker.listener.name={inter_broker}: expected one of {', '.join(sorted(names))}"
        )
