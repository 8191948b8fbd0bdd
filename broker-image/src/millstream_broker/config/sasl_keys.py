"""The keys of listeners with SASL: Kafka's names, types and defaults.

Each may be set for one listener, as `listener.name.NAME.KEY`, and most for one of its mechanisms, as
`listener.name.NAME.MECHANISM.KEY`, both in lower case (`listener_keys`).
"""

from __future__ import annotations

from .config_types import LONG_MAX, Key, Problem, Rule, Type, Value, at_least, between, some_of
from .jaas import JaasError, parse_jaas

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")
JAAS = "sasl.jaas.config"


def _jaas(value: Value) -> Problem | None:
    try:
        parse_jaas(str(value))
    except JaasError as error:
        return value, str(error)
    return None


SASL_KEYS = (
    Key(
        "sasl.enabled.mechanisms",
        Type.LIST,
        [],
        "SASL mechanisms of listeners with SASL_PLAINTEXT or SASL_SSL.",
        some_of(*MECHANISMS),
        dynamic=True,
        of_listener=True,
        dynamic_of_listener_only=True,
    ),
    Key(
        JAAS,
        Type.PASSWORD,
        None,
        'Users and passwords of PLAIN: `PlainLoginModule required user_NAME="PASSWORD";`. Only with the prefix of a'
        " listener and its mechanism.",
        Rule("one login module", _jaas),
        dynamic=True,
        of_mechanism=True,
        dynamic_of_listener_only=True,
    ),
    Key(
        "connections.max.reauth.ms",
        Type.LONG,
        0,
        "Life of a session, after which the client must authenticate again (KIP-368); 0: no limit.",
        between(0, LONG_MAX),
        of_listener=True,
        of_mechanism=True,
    ),
    Key(
        "connection.failed.authentication.delay.ms",
        Type.INT,
        100,
        "Pause before a failed authentication is answered and its connection closed.",
        between(0, 60_000),
    ),
    Key(
        "sasl.server.max.receive.size",
        Type.INT,
        524_288,
        "Largest request before authentication, in bytes.",
        at_least(1024),
    ),
)
