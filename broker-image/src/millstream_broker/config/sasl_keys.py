"""The keys of listeners with SASL: Kafka's names, types and defaults.

Each may be set for one listener, as `listener.name.NAME.KEY`, and most for one of its mechanisms, as
`listener.name.NAME.MECHANISM.KEY`, both in lower case (`listener_keys`).
"""

from __future__ import annotations

from .config_types import LONG_MAX, Key, Problem, Rule, Type, Value, at_least, between, one_of, some_of
from .jaas import JaasError, parse_jaas

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
JAAS = "sasl.jaas.config"
USER = "user_"
"""What options of PLAIN begin with that name a user."""
JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"
HANDLER = "sasl.server.callback.handler.class"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
UNSECURED = f"{_OAUTH}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
SECURED = (
    f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
    f"{_OAUTH}.secured.OAuthBearerValidatorCallbackHandler",
)
"""Kafka's classes, of which this broker has the behaviour."""


def _url(value: Value) -> Problem | None:
    scheme = str(value).partition("://")[0]
    return (
        None if scheme in ("https", "http", "file") else (value, "expected https://…, http://… or file:///…")
    )


def _oauth(name: str, type_: Type, default: Value, doc: str, rule: Rule | None = None) -> Key:
    return Key(f"sasl.oauthbearer.{name}", type_, default, doc, rule, of_listener=True, of_mechanism=True)


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
        'Users and passwords of PLAIN: `PlainLoginModule required user_NAME="PASSWORD";`. For OAUTHBEARER, the options'
        " `ssl.truststore.…` are for the URL of the provider's keys. Only with the prefix of a listener and its"
        " mechanism.",
        Rule("one login module", _jaas),
        dynamic=True,
        of_mechanism=True,
        dynamic_of_listener_only=True,
    ),
    Key(
        "sasl.scram.credentials.location",
        Type.STRING,
        None,
        "A file with SCRAM credentials of the listener's own, a line each: `USER SCRAM-SHA-512"
        " salt=…,stored_key=…,server_key=…,iterations=…`. Its users are not looked up elsewhere. It is read again"
        " when it changes.",
        of_listener=True,
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
    Key(
        HANDLER,
        Type.CLASS,
        None,
        "How OAUTHBEARER verifies tokens: by the provider's keys, or, only for tests, not at all.",
        one_of(*SECURED, UNSECURED),
        of_listener=True,
        of_mechanism=True,
    ),
    _oauth(
        "jwks.endpoint.url",
        Type.STRING,
        None,
        "Where the provider's public keys (JWKS) are: an https, http or file URL.",
        Rule("a URL", _url),
    ),
    _oauth(
        "jwks.endpoint.refresh.ms",
        Type.LONG,
        3_600_000,
        "Age after which the provider's keys are read again.",
        at_least(1),
    ),
    _oauth(
        "jwks.endpoint.retry.backoff.ms",
        Type.LONG,
        100,
        "Pause before the provider's keys are read again after a failure; it doubles with each.",
        at_least(1),
    ),
    _oauth("jwks.endpoint.retry.backoff.max.ms", Type.LONG, 10_000, "Longest such pause.", at_least(1)),
    _oauth("expected.audience", Type.LIST, [], "Audiences, one of which a token must have."),
    _oauth("expected.issuer", Type.STRING, None, "Issuer that a token must have."),
    _oauth(
        "clock.skew.seconds",
        Type.INT,
        30,
        "Difference between this broker's clock and the provider's.",
        at_least(0),
    ),
    _oauth("sub.claim.name", Type.STRING, "sub", "Claim with the name of the principal."),
    _oauth("scope.claim.name", Type.STRING, "scope", "Claim with the scopes."),
)
