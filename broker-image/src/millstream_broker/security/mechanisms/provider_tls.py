"""Which authorities may vouch for the server of an identity provider's keys.

As in Kafka, they are options of the login module of OAUTHBEARER, with the names of the keys of listeners; without any,
those of the system count:

    listener.name.NAME.oauthbearer.sasl.jaas.config=…OAuthBearerLoginModule required \
        ssl.truststore.type="PEM" ssl.truststore.location="/etc/millstream/provider-ca.pem";
"""

from __future__ import annotations

import ssl

from ...config.config import BrokerConfig
from ...config.config_types import ConfigError
from ...config.jaas import JaasError, parse_jaas

OPTIONS = (
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
)


def provider_context(jaas: str | None) -> ssl.SSLContext | None:
    """The context for requests to the provider; None: the system's. Blocking. Raises ConfigError."""
    try:
        options = {} if jaas is None else parse_jaas(jaas).options
    except JaasError as error:
        raise ConfigError(f"sasl.jaas.config: {error}", "sasl.jaas.config") from None
    given = {name: options[name] for name in OPTIONS if name in options}
    if not given:
        return None
    from ..tls.contexts import trust  # their libraries take memory
    from ..tls.keystores import read_truststore

    trusted = read_truststore(BrokerConfig(given).of_listener("provider"))
    if not trusted:
        raise ConfigError("sasl.jaas.config: set ssl.truststore.location or ssl.truststore.certificates, too")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust(context, trusted)
    return context
