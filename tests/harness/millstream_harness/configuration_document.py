"""Writes docs/reference/broker-configuration.md: every configuration key, from the tables that the broker uses.

make docs/reference/broker-configuration.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from millstream_broker.config.config_keys import BROKER_KEYS
from millstream_broker.config.config_types import INT_MAX, LONG_MAX, Key, as_text
from millstream_broker.config.topic_keys import TOPIC_KEYS

OURS: Final = (
    "audit.log",
    "audit.log.max.bytes",
    "audit.log.max.per.second",
    "http.listener",
    "log.format",
    "log.stray.retention.ms",
    "sasl.scram.credentials.location",
    "shutdown.drain.ms",
    "unclean.coordination.enable",
    "zookeeper.sasl.jaas.config",
)
"""Keys that no version of Kafka has."""
OLDER: Final = (
    *(name for name in BROKER_KEYS if name.startswith("zookeeper.") and name not in OURS),
    "controlled.shutdown.max.retries",
    "controlled.shutdown.retry.backoff.ms",
    "leader.imbalance.per.broker.percentage",
    "inter.broker.protocol.version",
    "log.message.format.version",
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
)
"""Kafka's keys that 4.3 no longer documents, or, for throttles, has only as dynamic settings."""
NEWER: Final = ("max.decompressed.message.bytes",)
"""Keys that Kafka has since 4.4."""
OF_THE_AUTHORIZER: Final = ("super.users", "allow.everyone.if.no.acl.found")
"""Keys of Kafka's authorizer, which are none of its brokers' own."""
DIFFERENT: Final = {
    "zookeeper.ssl.protocol": "default in Kafka: `TLSv1.2`, which servers of 3.9 do not have by default",
    "broker.id": "default in Kafka: -1, generated",
    "listeners": "default in Kafka: `PLAINTEXT://:9092`, every address; cannot change while the broker runs",
    "listener.security.protocol.map": "in Kafka without INTERNAL and EXTERNAL; cannot change while the broker runs",
    "sasl.enabled.mechanisms": "default in Kafka: `GSSAPI`, which is not served",
    "socket.listen.backlog.size": "default in Kafka: 50",
    "queued.max.request.bytes": "default in Kafka: -1, no limit",
    "log.dir": "default in Kafka: `/tmp/kafka-logs`",
    "num.recovery.threads.per.data.dir": "cannot change while the broker runs",
}
"""Keys whose default differs from Kafka 4.3.1, or that may change while Kafka runs, but not here."""

HEAD = """# Configuration of brokers and topics

Written by `make docs/reference/broker-configuration.md` from the tables that the broker itself uses; a test holds it to
them, another one compares defaults with Apache Kafka 4.3.1. Names, meaning and defaults are Kafka's, unless the last
column says otherwise.

A broker's keys are in `server.properties`, in `--override KEY=VALUE`, or in `spec.config` of a Cluster. A **dynamic**
key may also change while the broker runs: `millstream config set broker/1 KEY=VALUE`, or in `spec.config`, which
then restarts nothing. A topic's keys are in `spec.config` of a Topic, or `millstream config set topic/NAME KEY=VALUE`.
A topic that does not set a key takes the broker's key.

A key of security may be set for one listener: `listener.name.NAME.KEY`, with the listener's name in lower case, comes
before KEY. **With prefix** in the column "dynamic": only this form may change while the broker runs. Values of the type
*password* are never shown.

A broker does not start with a key that it does not know. It accepts Kafka's keys for features that it does not have,
and names each in its log at the start, with the reason.
"""


def page() -> str:
    """The whole page."""
    lines = [
        HEAD,
        "## Brokers",
        "",
        "| key | type | default | values | dynamic | meaning | difference from Kafka |",
    ]
    lines.append("|---|---|---|---|---|---|---|")
    lines += [_row(key) for key in BROKER_KEYS.values() if not key.inert]
    lines += [
        "",
        "## Topics",
        "",
        "| key | type | default | values | broker's key | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for key in TOPIC_KEYS.values():
        synonyms = ", ".join(f"`{synonym.name}`" for synonym in key.synonyms)
        lines.append(
            f"| `{key.name}` | {_type(key)} | {_default(key)} | {_values(key)} | {synonyms} | {_doc(key)} |"
        )
    lines += ["", "## Accepted without effect", "", *_without_effect(), ""]
    return "\n".join(lines)


def _row(key: Key) -> str:
    beside = DIFFERENT.get(key.name, "")
    if key.name in OURS:
        beside = "ours"
    elif key.name in NEWER:
        beside = "since Kafka 4.4"
    elif key.name in OLDER:
        beside = (
            "of Kafka's versions with ZooKeeper" if "throttled" not in key.name else "in Kafka dynamic only"
        )
        if key.name in DIFFERENT:
            beside += f"; {DIFFERENT[key.name]}"
    dynamic = "yes" if key.dynamic else ""
    if key.dynamic_of_listener_only:
        dynamic = "with prefix"
    return f"| `{key.name}` | {_type(key)} | {_default(key)} | {_values(key)} | {dynamic} | {_doc(key)} | {beside} |"


def _without_effect() -> Iterator[str]:
    yield "Files that set them stay valid; they tune machinery that this broker does not have:"
    yield ", ".join(f"`{key.name}`" for key in BROKER_KEYS.values() if key.inert) + "."


def _type(key: Key) -> str:
    return key.type.name.lower()


def _default(key: Key) -> str:
    named = {INT_MAX: "2^31 - 1", LONG_MAX: "2^63 - 1", 1.7976931348623157e308: "no limit"}
    if isinstance(key.default, int | float) and not isinstance(key.default, bool) and key.default in named:
        return named[key.default]
    text = as_text(key.default)
    return f"`{text}`" if text else ""


def _values(key: Key) -> str:
    return key.rule.allowed if key.rule else ""


def _doc(key: Key) -> str:
    return key.doc.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
