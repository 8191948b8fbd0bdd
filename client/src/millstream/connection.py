"""Reaching a cluster: one look at its addresses before librdkafka, which would try for ever, takes over.

`Cluster` is what all functions of this package take. It is cheap; it connects with its first use.
"""

from __future__ import annotations

import functools
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millstream.errors import BadInput, Failed, Unreachable

DEFAULT_BOOTSTRAP: Final = "localhost:9092"
CONNECT_TIMEOUT_S: Final = 3.0
REQUEST_TIMEOUT_S: Final = 10.0

Config = dict[str, Any]


class Cluster:
    """The brokers behind ``bootstrap`` ("HOST:PORT", several with commas between)."""

    def __init__(self, bootstrap: str = DEFAULT_BOOTSTRAP) -> None:
        self.bootstrap = bootstrap
        self.addresses = [_address(part) for part in bootstrap.split(",")]

    def client_config(self, **more: Any) -> Config:
        """librdkafka's configuration for this cluster; more settings with "_" for "."."""
        # What librdkafka would log about a broker that is away comes back as errors too.
        config: Config = {"bootstrap.servers": self.bootstrap, "client.id": "millstream", "log_level": 0}
        return config | {name.replace("_", "."): value for name, value in more.items()}

    @functools.cached_property
    def admin(self) -> AdminClient:
        """Connected: Unreachable is raised within seconds if the cluster cannot be used from here."""
        reasons = [reason for address in self.addresses if (reason := _why_unreachable(*address))]
        if len(reasons) == len(self.addresses):
            raise Unreachable(
                f"no broker at {self.bootstrap} ({'; '.join(dict.fromkeys(reasons))})",
                "start one (millstream local up -f DIR), or name another with --bootstrap",
            )
        admin = AdminClient(self.client_config())
        try:
            brokers: list[Any] = list(admin.list_topics(timeout=CONNECT_TIMEOUT_S).brokers.values())
        except KafkaException as error:
            raise Unreachable(
                f"what listens at {self.bootstrap} does not answer as a broker ({error.args[0].str()})",
                "name another address with --bootstrap",
            ) from None
        advertised: dict[str, str] = {
            f"{broker.host}:{broker.port}": _why_unreachable(broker.host, broker.port) for broker in brokers
        }
        if advertised and all(advertised.values()):
            said = ", ".join(f"{address} ({reason})" for address, reason in advertised.items())
            raise Unreachable(
                f"{self.bootstrap} answers, but its brokers cannot be reached where they say they are: {said}",
                "set the brokers' advertised.listeners to addresses that clients reach",
            )
        return admin

    def metadata(self) -> Any:
        """Brokers and all topics: to ask for one topic may create it."""
        with kafka_errors():
            return self.admin.list_topics(timeout=REQUEST_TIMEOUT_S)


@contextmanager
def kafka_errors() -> Iterator[None]:
    """The client library's errors as ours."""
    try:
        yield
    except KafkaException as error:
        raise Failed(_one_line(error.args[0].str())) from None


def results(futures: Mapping[Any, Any]) -> dict[Any, Any]:
    """All results of an admin call that gives a future for each of its subjects."""
    with kafka_errors():
        return {subject: future.result() for subject, future in futures.items()}


def _address(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^\[\]:\s]+)):(\d{1,5})", text.strip())
    if found is None or not 0 < int(found[3]) < 65536:
        raise BadInput(f'bootstrap: "{text}" is not allowed', "HOST:PORT, or several with commas between")
    return found[1] or found[2], int(found[3])


def _why_unreachable(host: str, port: int) -> str:
    """Why nothing accepts connections there; "" when something does."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except socket.gaierror:
        return f"{host}: unknown host"
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _one_line(text: str) -> str:
    return text.strip().partition("\n")[0]
