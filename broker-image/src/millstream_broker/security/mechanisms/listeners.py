"""The mechanisms of each listener, by the present configuration."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from millstream_kafka.scram_mechanism import ScramMechanism

from ...config.config import BrokerConfig, Listener, ListenerConfig
from ...config.listener_keys import prefix
from ...config.sasl_keys import HANDLER, JAAS, JWKS_URL, OAUTHBEARER, PLAIN, UNSECURED
from ..authentication import Authenticator, Mechanisms
from ..credential_file import KEY as LOCATION
from ..credential_file import CredentialFile
from ..scram_credentials import ScramCredentials
from .inter_broker import MECHANISM
from .json_web_keys import JsonWebKeys, read_keys
from .oauthbearer import Expected, OAuthBearerAuthenticator
from .plain import PlainAuthenticator
from .provider_tls import provider_context
from .scram import ScramAuthenticator

log = logging.getLogger(__name__)


class ListenerMechanisms(Mapping[str, Authenticator]):
    """Those of one listener: for clients as enabled there, and the one for brokers."""

    def __init__(
        self,
        config: BrokerConfig,
        listener: Listener,
        credentials: ScramCredentials,
        secret: bytes,
        of_brokers: Authenticator | None,
    ) -> None:
        self._config = config.of_listener(listener.name)
        self._of_brokers = {} if of_brokers is None else {MECHANISM: of_brokers}
        self._has_sasl = listener.has_sasl
        self._supported: dict[str, Authenticator] = {}
        self._missing: list[str] = []
        """Mechanisms that were enabled at run time without what they need, as last reported."""
        if listener.has_sasl:
            users = prefix(listener.name, PLAIN) + JAAS
            self._supported[PLAIN] = PlainAuthenticator(
                lambda: config.text(users) if config.is_set(users) else None
            )
            file = _credential_file(self._config)
            for mechanism in ScramMechanism:
                self._supported[mechanism.label] = ScramAuthenticator(mechanism, credentials, secret, file)
            of_tokens = config.of_listener(listener.name, OAUTHBEARER)
            if _has_tokens(of_tokens):
                self._supported[OAUTHBEARER] = _of_tokens(of_tokens)

    def _enabled(self) -> list[str]:
        enabled = self._config.strings("sasl.enabled.mechanisms")
        missing = [name for name in enabled if name not in self._supported]
        if missing and self._has_sasl and missing != self._missing:
            log.error(
                "listener %s cannot serve %s: see %s", self._config.listener, ", ".join(missing), JWKS_URL
            )
        self._missing = missing
        return [name for name in enabled if name in self._supported]

    def __getitem__(self, name: str) -> Authenticator:
        if name in self._of_brokers:
            return self._of_brokers[name]
        if name not in self._enabled():
            raise KeyError(name)
        return self._supported[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._enabled()
        yield from self._of_brokers

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _credential_file(config: ListenerConfig) -> CredentialFile | None:
    """Raises ConfigError."""
    location = config[LOCATION]
    return None if location is None else CredentialFile(Path(str(location)))


def _has_tokens(config: ListenerConfig) -> bool:
    return config[JWKS_URL] is not None or config[HANDLER] == UNSECURED


def _of_tokens(config: ListenerConfig) -> OAuthBearerAuthenticator:
    """Raises ConfigError."""
    url, issuer = config[JWKS_URL], config["sasl.oauthbearer.expected.issuer"]
    expected = Expected(
        None if issuer is None else str(issuer),
        config.strings("sasl.oauthbearer.expected.audience"),
        config.integer("sasl.oauthbearer.clock.skew.seconds"),
        config.text("sasl.oauthbearer.sub.claim.name"),
        config.text("sasl.oauthbearer.scope.claim.name"),
    )
    if url is None:
        return OAuthBearerAuthenticator(None, expected)

    def context() -> ssl.SSLContext | None:
        jaas = config[JAAS]
        return provider_context(None if jaas is None else str(jaas))

    context()  # to find mistakes now
    of_keys = "sasl.oauthbearer.jwks.endpoint"
    keys = JsonWebKeys(
        str(url),
        config.integer(f"{of_keys}.refresh.ms") / 1000,
        partial(read_keys, context_of=context),
        retry_s=config.integer(f"{of_keys}.retry.backoff.ms") / 1000,
        longest_retry_s=config.integer(f"{of_keys}.retry.backoff.max.ms") / 1000,
    )
    return OAuthBearerAuthenticator(keys, expected)


def check_files(config: BrokerConfig, listeners: Iterable[Listener]) -> None:
    """Read what the mechanisms of the listeners need, so that a mistake is found before the broker joins its cluster.

    Blocking. Raises ConfigError.
    """
    for listener in listeners:
        if listener.has_sasl:
            _credential_file(config.of_listener(listener.name))
            if _has_tokens(of_tokens := config.of_listener(listener.name, OAUTHBEARER)):
                _of_tokens(of_tokens)


def mechanisms_of(
    config: BrokerConfig,
    listeners: Iterable[Listener],
    for_brokers: str,
    credentials: ScramCredentials,
    secret: bytes,
    of_brokers: Authenticator,
) -> dict[str, Mechanisms]:
    """Those of each listener, by its name; only the listener `for_brokers` has the mechanism of brokers."""
    return {
        listener.name: ListenerMechanisms(
            config, listener, credentials, secret, of_brokers if listener.name == for_brokers else None
        )
        for listener in listeners
    }
