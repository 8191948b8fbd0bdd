"""The steps of `millstream_harness.logins` by clients in Python: python clients.py CLIENT STEPS"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import aiokafka
import aiokafka.abc
import kafka
import kafka.net.sasl.oauth
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

PAUSE_S = 0.4
LIMIT_S = 40.0


class Client(Protocol):
    """One client; each method raises the client's own error."""

    def __init__(self, step: dict[str, Any]) -> None: ...

    def write(self, pause_s: float = 0) -> None: ...

    def read(self, count: int) -> list[str]: ...


class ConfluentKafka:
    def __init__(self, step: dict[str, Any]) -> None:
        self.step = step
        self.errors: list[Any] = []
        self.ends_at = time.monotonic() + LIMIT_S
        self.config = {
            "bootstrap.servers": step["bootstrap"],
            "security.protocol": "SASL_SSL" if step["mechanism"] else "SSL",
            "ssl.ca.location": step["ca"],
            "error_cb": self.errors.append,
            "log_level": 0,
        }
        if not step["mechanism"]:
            self.config["ssl.certificate.location"] = self.config["ssl.key.location"] = step["certificate"]
        elif step["mechanism"] == "OAUTHBEARER":
            self.config["oauth_cb"] = lambda _: (step["token"], time.time() + 3600)
        else:
            self.config |= {"sasl.username": step["user"], "sasl.password": step["password"]}
        if step["mechanism"]:
            self.config["sasl.mechanism"] = step["mechanism"]

    def problem(self) -> None:
        """It tries again for ever, and reports each failure to its callback."""
        for error in self.errors:
            refused = error.code() == KafkaError._TRANSPORT and "SSL alert" in error.str()
            if refused or error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
                raise KafkaException(error)
        if time.monotonic() > self.ends_at:
            raise TimeoutError(f"{LIMIT_S} s: {self.errors}")

    def write(self, pause_s: float = 0) -> None:
        producer = Producer(self.config)
        refused: list[Any] = []
        for value in self.step["values"]:
            producer.produce(
                self.step["topic"],
                value.encode(),
                on_delivery=lambda error, _: error and refused.append(error),
            )
            if pause_s:
                producer.flush(LIMIT_S)
                time.sleep(pause_s)
        while producer.flush(0.2):
            self.problem()
        if refused:
            raise KafkaException(refused[0])

    def read(self, count: int) -> list[str]:
        consumer = Consumer({**self.config, "group.id": self.step["group"], "auto.offset.reset": "earliest"})
        consumer.subscribe([self.step["topic"]])
        found: list[str] = []
        try:
            while len(found) < count:
                message = consumer.poll(0.2)
                self.problem()
                if message is None:
                    continue
                if message.error():
                    raise KafkaException(message.error())
                found.append((message.value() or b"").decode())
        finally:
            consumer.close()
        return found


def context(step: dict[str, Any]) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=step["ca"])
    if not step["mechanism"]:
        made.load_cert_chain(step["certificate"])
    return made


def python_config(step: dict[str, Any]) -> dict[str, Any]:
    """What kafka-python and aiokafka have in common."""
    config = {
        "bootstrap_servers": step["bootstrap"],
        "security_protocol": "SASL_SSL" if step["mechanism"] else "SSL",
        "ssl_context": context(step),
    }
    if step["mechanism"]:
        config["sasl_mechanism"] = step["mechanism"]
    if step["mechanism"] not in ("", "OAUTHBEARER"):
        config |= {"sasl_plain_username": step["user"], "sasl_plain_password": step["password"]}
    return config


class KafkaPython:
    def __init__(self, step: dict[str, Any]) -> None:
        self.step = step
        self.config = python_config(step)
        if step["mechanism"] == "OAUTHBEARER":

            class Provider(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
                def token(self) -> str:
                    return str(step["token"])

            self.config["sasl_oauth_token_provider"] = Provider()

    def write(self, pause_s: float = 0) -> None:
        producer = kafka.KafkaProducer(**self.config, bootstrap_timeout_ms=10_000)
        for value in self.step["values"]:
            producer.send(self.step["topic"], value.encode()).get(20)
            time.sleep(pause_s)
        producer.close()

    def read(self, count: int) -> list[str]:
        consumer = kafka.KafkaConsumer(
            self.step["topic"], group_id=self.step["group"], auto_offset_reset="earliest", **self.config
        )
        found = [next(consumer).value.decode() for _ in range(count)]
        consumer.close()
        return found


class AioKafka:
    def __init__(self, step: dict[str, Any]) -> None:
        self.step = step
        self.config = python_config(step)
        if step["mechanism"] == "OAUTHBEARER":

            class Provider(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
                async def token(self) -> str:
                    return str(step["token"])

            self.config["sasl_oauth_token_provider"] = Provider()

    def write(self, pause_s: float = 0) -> None:
        asyncio.run(self._write(pause_s))

    async def _write(self, pause_s: float) -> None:
        producer = aiokafka.AIOKafkaProducer(**self.config, request_timeout_ms=10_000)
        try:
            await producer.start()
            for value in self.step["values"]:
                await producer.send_and_wait(self.step["topic"], value.encode())
                await asyncio.sleep(pause_s)
        finally:
            await producer.stop()

    def read(self, count: int) -> list[str]:
        return asyncio.run(self._read(count))

    async def _read(self, count: int) -> list[str]:
        consumer = aiokafka.AIOKafkaConsumer(
            self.step["topic"], group_id=self.step["group"], auto_offset_reset="earliest", **self.config
        )
        try:
            await consumer.start()
            return [(await consumer.getone()).value.decode() for _ in range(count)]
        finally:
            await consumer.stop()


CLIENTS: dict[str, type[Client]] = {
    "confluent-kafka": ConfluentKafka,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}


def play(kind: type[Client], step: dict[str, Any]) -> str:
    try:
        client = kind(step)
        match step["action"]:
            case "write":
                client.write()
            case "session":
                client.write(PAUSE_S)
            case "read":
                client.read(1)
            case "round-trip":
                client.write()
                found = client.read(len(step["values"]))
                if found != step["values"]:
                    return f"read {found}"
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return "ok"


def main(client: str, settings: str) -> None:
    logging.basicConfig(level=logging.WARNING)  # on standard error
    with open(settings) as file:
        steps = json.load(file)
    with ThreadPoolExecutor(len(steps)) as threads:
        running = {step["name"]: threads.submit(play, CLIENTS[client], step) for step in steps}
        for name, result in running.items():
            print("RESULT", name, result.result(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
