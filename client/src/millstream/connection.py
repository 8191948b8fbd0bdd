"""Connects to a cluster: tries each address once before librdkafka, which would retry endlessly, takes over.

`Cluster` is the argument of all functions of this package. It is cheap, and connects on first use.
"""

from __future__ import annotations

import functools
import json
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from millstream import client_config, client_properties, listener, sasl
from millstream.addresses import host_port
from millstream.client_config import DEFAULT_BOOTSTRAP
from millstream.errors import BadInput, Failed, NoLeader, UnknownTopic, Unreachable
from millstream.retriable import is_retriable

CONNECT_TIMEOUT_S: Final = 3.0
REQUEST_TIMEOUT_S: Final = 10.0
ATTEMPTS_S: Final = (1.0, 1.0, CONNECT_TIMEOUT_S)
"""How long to wait for the first answer of a cluster, each time with another client."""
NO_ANSWER: Final = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT)
LEARNING_WAIT_S: Final = 2.0
REFUSAL_WAIT_S: Final = 2.0
LEADER_WAIT_S: Final = 5.0
"""How long a partition may lack a leader (an election is short) before that is an error."""

Config = dict[str, Any]


class Cluster:
    """The brokers behind ``bootstrap`` ("HOST:PORT"; several separated by commas).

    ``config`` has the settings that every client of the cluster needs, such as those of TLS and SASL, by the names of
    Kafka's Java clients or of librdkafka; ``self.config`` has librdkafka's.
    """

    def __init__(
        self,
        bootstrap: str = DEFAULT_BOOTSTRAP,
        config: Mapping[str, Any] | None = None,
        where: str = "config",
    ) -> None:
        """``where`` names the origin of the settings in errors."""
        self.bootstrap = bootstrap
        self.addresses = [_address(part) for part in bootstrap.split(",")]
        self.config = client_properties.translated(config or {}, where)
        self._given = dict(config or {})
        self._where = where

    @classmethod
    def from_file(cls, path: str, bootstrap: str | None = None) -> Cluster:
        """The cluster of a file of client properties; ``bootstrap`` replaces the file's bootstrap.servers. BadInput."""
        found = client_config.load("config", path)
        return cls(bootstrap or found.bootstrap or DEFAULT_BOOTSTRAP, found.settings, found.where)

    def client_config(self, **more: Any) -> Config:
        """librdkafka's configuration for this cluster; more settings with "_" for "."."""
        # librdkafka's log about a missing broker also comes back as errors.
        config: Config = {"bootstrap.servers": self.bootstrap, "client.id": "millstream", "log_level": 0}
        return config | self.config | {name.replace("_", "."): value for name, value in more.items()}

    def why_unreachable(self) -> str:
        """Why no address accepts connections now; "" if one does."""
        reasons = [_why_unreachable(*address) for address in self.addresses]
        return "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""

    @property
    def admin(self) -> AdminClient:
        """librdkafka's connected admin client; raises Unreachable within seconds if the cluster cannot be used."""
        return self._connection[0]

    @property
    def first_metadata(self) -> Any:
        """The brokers and topics as of the connection. Later requests may go to the advertised addresses."""
        return self._connection[1]

    @functools.cached_property
    def _connection(self) -> tuple[AdminClient, Any]:
        if reasons := self.why_unreachable():
            raise Unreachable(
                f"no broker at {self.bootstrap} ({reasons})",
                "start one (millstream local up -f DIR), or name another in `bootstrap`",
            )
        try:
            admin, metadata = self._connected()
        except KafkaException as error:
            if error.args[0].code() in NO_ANSWER:
                self._check_advertised(_learned(self.client_config()))
            self._explain()
            raise Unreachable(
                f"{self.bootstrap} does not answer as a Kafka broker ({error.args[0].str()})",
                "name another address in `bootstrap`, or see what millstream doctor says",
            ) from None
        brokers = metadata.brokers.values()
        self._check_advertised([(str(broker.host), broker.port) for broker in brokers])
        return admin, metadata

    def _explain(self) -> None:
        """Raises Unreachable if TLS or SASL are the reason."""
        for host, port in self.addresses:
            if problem := listener.why_unusable(host, port, self.config):
                advised = client_properties.spelled(problem, self._given)
                raise Unreachable(f"{host_port(host, port)} cannot be used: {advised}") from None
        if refused := _why_refused(self.client_config()):
            advice = "check sasl.username and sasl.password" if sasl.is_used(self.config) else "check ssl.*"
            raise Unreachable(
                f"{self.bootstrap} refuses this client ({refused})",
                client_properties.spelled(advice, self._given),
            ) from None

    def _connected(self) -> tuple[AdminClient, Any]:
        """A client, and the metadata that an address of ours returns.

        librdkafka may learn of the brokers before it has sent the request, and then drops its connection to our
        address. The request waits for an advertised one, which may lead nowhere, so another client asks again.
        """
        for number, timeout_s in enumerate(ATTEMPTS_S):
            try:
                admin = AdminClient(self.client_config())
            except KafkaException as error:
                raise BadInput(f"{self._where}: {_words(error.args[0])}", "correct or remove it") from None
            try:
                return admin, admin.list_topics(timeout=timeout_s)
            except KafkaException as error:
                last = error
                if error.args[0].code() not in NO_ANSWER:
                    break
                if number == 0 and sasl.is_used(self.config):
                    self._explain()  # soon: brokers answer each further wrong password later
        raise last

    def _check_advertised(self, brokers: Iterable[tuple[str, int]]) -> None:
        """Raises Unreachable if all of the addresses that the brokers advertise lead nowhere."""
        advertised = {host_port(host, port): _why_unreachable(host, port) for host, port in brokers}
        if advertised and all(advertised.values()):
            said = ", ".join(f"{address} ({reason})" for address, reason in advertised.items())
            raise Unreachable(
                f"{self.bootstrap} answers, but the addresses that its brokers advertise do not: {said}",
                "set advertised.listeners to addresses that clients reach",
            ) from None

    def metadata(self) -> Any:
        """Brokers and all topics; a request for one topic could create it."""
        with kafka_errors():
            return self.admin.list_topics(timeout=REQUEST_TIMEOUT_S)

    def partitions(self, topic: str) -> dict[int, Any]:
        """A topic's partitions by number, from metadata; UnknownTopic if it does not exist."""
        topics = self.metadata().topics
        if topic not in topics:
            raise UnknownTopic(
                f'there is no topic "{topic}"',
                "create it (millstream topic create NAME), or see millstream topic list",
            )
        return {number: topics[topic].partitions[number] for number in sorted(topics[topic].partitions)}

    def led_partitions(self, topic: str, needed: Iterable[int] | None = None) -> dict[int, Any]:
        """The same, once those needed (default: all) have a leader; NoLeader if one has none after a few seconds."""
        deadline = time.monotonic() + LEADER_WAIT_S
        while True:
            found = self.partitions(topic)
            without = [n for n in (found if needed is None else needed) if n in found and found[n].leader < 0]
            if not without:
                return found
            if time.monotonic() > deadline:
                raise no_leader(topic, without[0], found[without[0]])
            time.sleep(0.1)


def cluster_of(bootstrap: str | Cluster, config: Mapping[str, Any] | None = None) -> Cluster:
    """The cluster that a caller has named; BadInput for another type."""
    if isinstance(bootstrap, Cluster):
        return bootstrap
    if isinstance(bootstrap, str):
        return Cluster(bootstrap, config)
    raise BadInput(
        f"bootstrap: {bootstrap!r} is not allowed",
        'write "HOST:PORT,HOST:PORT", or give a millstream.Cluster',
    )


def unexpected(what: str, error: TypeError, settings: type) -> BadInput:
    """An option that does not exist, named with those that do (the fields of a settings class)."""
    names = ", ".join(field.name for field in fields(settings))
    return BadInput(f"{what}: {str(error).partition(') ')[2] or error}", f"the options are {names}")


def no_leader(topic: str, number: int, partition: Any) -> NoLeader:
    """Describe a partition without a leader, and the brokers that it waits for (``partition`` from metadata)."""
    brokers = ", ".join(map(str, partition.isrs or partition.replicas))
    return NoLeader(
        f"partition {number} of {topic} has no leader",
        f"its in-sync replicas are on {brokers}; start one of these brokers "
        "(millstream cluster info shows which brokers are up)",
    )


@contextmanager
def kafka_errors() -> Iterator[None]:
    """Convert the client library's errors to ours."""
    try:
        yield
    except KafkaException as error:
        raise failed(error) from None


def failed(error: KafkaException) -> Failed:
    """The error of the client library as one of ours."""
    return Failed(_words(error.args[0]), retriable=is_retriable(error.args[0]))


def results(futures: Mapping[Any, Any]) -> dict[Any, Any]:
    """All results of an admin call that returns a future per subject; raises the first failure."""
    with kafka_errors():
        return {subject: future.result() for subject, future in futures.items()}


def outcomes(futures: Mapping[Any, Any]) -> dict[Any, str]:
    """The reason why each subject of such a call was refused; "" for success."""
    found = {}
    for subject, future in futures.items():
        try:
            future.result()
        except KafkaException as error:
            found[subject] = _words(error.args[0])
        else:
            found[subject] = ""
    return found


def _address(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^\[\]:\s]+)):([0-9]{1,5})", text.strip())
    if found is None or not 0 < int(found[3]) < 65536:
        raise BadInput(f'bootstrap: "{text}" is not allowed', "write HOST:PORT; separate several with commas")
    return found[1] or found[2], int(found[3])


def _why_unreachable(host: str, port: int) -> str:
    """Why no connection is accepted there; "" if one is."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except (socket.gaierror, UnicodeError):  # UnicodeError for a text that cannot be a name
        return f"{host}: unknown host"
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _learned(config: Config) -> list[tuple[str, int]]:
    """The addresses of the brokers that librdkafka learns from our addresses; none if it learns none soon.

    Uses a client of its own, because the statistics of a shared AdminClient would pile up.
    """
    found: list[tuple[str, int]] = []

    def learn(statistics: str) -> None:
        for broker in json.loads(statistics)["brokers"].values():
            if broker["source"] == "learned":
                host, _, port = broker["nodename"].rpartition(":")
                found.append((host.strip("[]"), int(port)))

    _poll(config | {"stats_cb": learn, "statistics.interval.ms": 100}, found, LEARNING_WAIT_S)
    return found


def _why_refused(config: Config) -> str:
    """The reason that TLS or SASL give for a refused connection; "" if they give none soon.

    Uses a client of its own, because nobody would serve the callbacks of a shared AdminClient later, and its errors
    would pile up.
    """
    found: list[str] = []

    def add(error: KafkaError) -> None:
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            found.append(re.sub(r"^\w+://\S+: | \(after \d+ms in state \w+.*$", "", error.str()))

    _poll(config | {"error_cb": add}, found, REFUSAL_WAIT_S)
    return found[0] if found else ""


def _poll(config: Config, found: list[Any], seconds: float) -> None:
    """Serve the callbacks of a client of its own, which asks for the brokers, until one has found something."""
    client = AdminClient(config)
    client.describe_cluster(request_timeout=seconds)
    deadline = time.monotonic() + seconds
    while not found and time.monotonic() < deadline:
        client.poll(0.05)


def _words(error: KafkaError) -> str:
    """The first line of an error; librdkafka leaves out the reason of some, which end with a colon."""
    line = error.str().strip().partition("\n")[0]
    return f"{line} {error.name()}" if line.endswith(":") else line
