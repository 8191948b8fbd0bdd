"""The keys of listeners with TLS: Kafka's names, types and defaults.

Each may be set for one listener, as `listener.name.NAME.KEY` with the listener's name in lower case (`listener_keys`).
Only in this form may those that Kafka can change at run time change here.
"""

from __future__ import annotations

from .config_types import Key, Rule, Type, one_of, some_of

PROTOCOLS = ("TLSv1.2", "TLSv1.3")
STORE_TYPES = ("JKS", "PKCS12", "PEM")
CLIENT_AUTHENTICATION = ("required", "requested", "none")

CERTIFICATE = ("ssl.keystore.location", "ssl.keystore.certificate.chain")
"""The keys that give a listener its certificate: one of them is set."""
TRUST = ("ssl.truststore.location", "ssl.truststore.certificates")
"""The keys that give a listener the authorities that it trusts."""


def _key(name: str, type_: Type, default: str | list[str] | None, doc: str, rule: Rule | None = None) -> Key:
    return Key(name, type_, default, doc, rule, True, of_listener=True, dynamic_of_listener_only=True)


TLS_KEYS = (
    _key(
        "ssl.keystore.type",
        Type.STRING,
        "JKS",
        "Format of `ssl.keystore.location`. A file of the type JKS must be PKCS12, as keytool writes it since Java 9.",
        rule=one_of(*STORE_TYPES),
    ),
    _key(
        "ssl.keystore.location",
        Type.STRING,
        None,
        "File with the private key and certificates of a listener.",
    ),
    _key("ssl.keystore.password", Type.PASSWORD, None, "Password of a PKCS12 file."),
    _key("ssl.key.password", Type.PASSWORD, None, "Password of the private key."),
    _key("ssl.keystore.key", Type.PASSWORD, None, "Private key in PEM format (PKCS#8), instead of a file."),
    _key(
        "ssl.keystore.certificate.chain",
        Type.PASSWORD,
        None,
        "The listener's certificate and those of its issuers in PEM format, instead of a file.",
    ),
    _key(
        "ssl.truststore.type",
        Type.STRING,
        "JKS",
        "Format of `ssl.truststore.location`, as `ssl.keystore.type`.",
        rule=one_of(*STORE_TYPES),
    ),
    _key(
        "ssl.truststore.location",
        Type.STRING,
        None,
        "File with the certificates of the authorities that issue those of clients and of other brokers.",
    ),
    _key("ssl.truststore.password", Type.PASSWORD, None, "Password of a PKCS12 file."),
    _key("ssl.truststore.certificates", Type.PASSWORD, None, "The same in PEM format, instead of a file."),
    _key(
        "ssl.client.auth",
        Type.STRING,
        "none",
        "Whether clients present a certificate.",
        rule=one_of(*CLIENT_AUTHENTICATION),
    ),
    _key("ssl.enabled.protocols", Type.LIST, list(PROTOCOLS), "Versions of TLS.", rule=some_of(*PROTOCOLS)),
    _key(
        "ssl.protocol",
        Type.STRING,
        "TLSv1.3",
        "Accepted, without effect, as in Kafka: `ssl.enabled.protocols` decides.",
        rule=one_of(*PROTOCOLS, "TLS"),
    ),
    _key(
        "ssl.cipher.suites",
        Type.LIST,
        [],
        "Names of cipher suites, in the order of preference; default: those of OpenSSL.",
    ),
    _key(
        "ssl.endpoint.identification.algorithm",
        Type.STRING,
        "https",
        "Whether a broker's certificate must be for the address that another broker connects to; empty: it need not.",
        rule=one_of("https", ""),
    ),
    Key(
        "ssl.principal.mapping.rules",
        Type.STRING,
        "DEFAULT",
        "How the name of a client's certificate becomes a principal: RULE:PATTERN/REPLACEMENT/L or /U, DEFAULT.",
        of_listener=True,
    ),
    Key(
        "ssl.allow.dn.changes",
        Type.BOOLEAN,
        False,
        "Whether a new certificate may have another subject.",
        of_listener=True,
    ),
    Key(
        "ssl.allow.san.changes",
        Type.BOOLEAN,
        False,
        "Whether a new certificate may lack names of the old one.",
        of_listener=True,
    ),
    Key(
        "security.inter.broker.protocol",
        Type.STRING,
        "PLAINTEXT",
        "Brokers use the listener that has this protocol for its name; instead of `inter.broker.listener.name`.",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
)
