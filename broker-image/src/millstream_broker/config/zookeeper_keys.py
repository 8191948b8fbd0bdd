"""The keys of the connection to ZooKeeper: names, types and defaults of Kafka 3.9, the last version with ZooKeeper.

Kafka takes SASL credentials from a JAAS file that KAFKA_OPTS names. A broker reads that file, too (`with_jaas_file`);
`zookeeper.sasl.jaas.config` is the same login module as a key.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from .config_types import ConfigError, Key, Problem, Rule, Type, Value, at_least, one_of, some_of
from .jaas import JaasError, LoginModule, parse_jaas, section

CONNECT = "zookeeper.connect"
JAAS = "zookeeper.sasl.jaas.config"
SET_ACL = "zookeeper.set.acl"
TLS_ENABLED = "zookeeper.ssl.client.enable"
CLIENT_SOCKET = "zookeeper.clientCnxnSocket"
NETTY, NIO = "org.apache.zookeeper.ClientCnxnSocketNetty", "org.apache.zookeeper.ClientCnxnSocketNIO"
LOGIN_MODULE = "DigestLoginModule"
STORE_TYPES = ("JKS", "PKCS12", "PEM")
PROTOCOLS = ("TLSv1.2", "TLSv1.3")


def login_module(text: str) -> LoginModule:
    """ZooKeeper's DigestLoginModule with its user and password. Raises JaasError, without a secret."""
    found = parse_jaas(text)
    if found.module.rpartition(".")[2] != LOGIN_MODULE:
        raise JaasError(
            f"the login module is {found.module}: expected org.apache.zookeeper.server.auth.{LOGIN_MODULE};"
            " there is no Kerberos"
        )
    for option in ("username", "password"):
        value = found.options.get(option, "")
        if not (value and value.isascii() and value.isprintable()):
            raise JaasError(f"{option} is missing, empty or has a character outside ASCII")
    return found


def _jaas(value: Value) -> Problem | None:
    try:
        login_module(str(value))
    except JaasError as error:
        return value, str(error)
    return None


def _tls(name: str, type_: Type, default: str | list[str] | None, doc: str, rule: Rule | None = None) -> Key:
    return Key(f"zookeeper.ssl.{name}", type_, default, doc, rule)


def _is_set(value: Value) -> Problem | None:
    return (value, "Brokers do not check revocation: expected false") if value else None


_NO_REVOCATION = Rule("`false`", _is_set)
_TYPE_DOC = "default: by the file's ending, .jks, .p12, .pfx or .pem. A JKS file must be converted to PKCS12."

ZOOKEEPER_KEYS = (
    Key(
        CONNECT,
        Type.STRING,
        "",
        "ZooKeeper ensemble: HOST:PORT,HOST:PORT/PATH; empty: a standalone broker.",
    ),
    Key(
        "zookeeper.session.timeout.ms", Type.INT, 18_000, "Silence after which a broker is dead.", at_least(1)
    ),
    Key(TLS_ENABLED, Type.BOOLEAN, False, "Whether to connect to ZooKeeper by TLS."),
    Key(
        CLIENT_SOCKET,
        Type.STRING,
        None,
        f"Kafka needs {NETTY} for TLS, and so may its files here.",
        one_of(NETTY, NIO),
    ),
    _tls("keystore.location", Type.STRING, None, "File with the broker's private key and certificates."),
    _tls(
        "keystore.password",
        Type.PASSWORD,
        None,
        "Password of a PKCS12 file, or of the private key in a PEM file.",
    ),
    _tls("keystore.type", Type.STRING, None, f"Format of that file; {_TYPE_DOC}", one_of(*STORE_TYPES)),
    _tls(
        "truststore.location",
        Type.STRING,
        None,
        "File with the certificates of the authorities that issue those of ZooKeeper's servers; default: those that the"
        " system trusts.",
    ),
    _tls("truststore.password", Type.PASSWORD, None, "Password of a PKCS12 file."),
    _tls("truststore.type", Type.STRING, None, f"Format of that file; {_TYPE_DOC}", one_of(*STORE_TYPES)),
    _tls(
        "endpoint.identification.algorithm",
        Type.STRING,
        "HTTPS",
        "Whether a server's certificate must be for its host in `zookeeper.connect`; empty: it need not.",
        one_of("HTTPS", "https", ""),
    ),
    _tls(
        "protocol",
        Type.STRING,
        "TLS",
        "Version of TLS, unless `zookeeper.ssl.enabled.protocols` is set; TLS: both.",
        one_of(*PROTOCOLS, "TLS"),
    ),
    _tls("enabled.protocols", Type.LIST, [], "Versions of TLS.", some_of(*PROTOCOLS)),
    _tls("cipher.suites", Type.LIST, [], "Names of cipher suites, in the order of preference."),
    *(
        Key(
            f"zookeeper.ssl.{name}.enable",
            Type.BOOLEAN,
            False,
            "Whether the revocation of certificates is checked: it is not.",
            _NO_REVOCATION,
        )
        for name in ("crl", "ocsp")
    ),
    Key(
        JAAS,
        Type.PASSWORD,
        None,
        f'User and password for ZooKeeper\'s SASL: `{LOGIN_MODULE} required username="NAME" password="PASSWORD";`.'
        " Default: section Client of the JAAS file in KAFKA_OPTS.",
        Rule("one login module", _jaas),
    ),
    Key(
        SET_ACL,
        Type.BOOLEAN,
        False,
        "Whether only brokers may write in ZooKeeper, and read secrets there. All brokers need credentials first.",
    ),
)


def has_certificate(given: Mapping[str, Value]) -> bool:
    """Whether a client certificate is configured, by which ZooKeeper knows the broker."""
    return bool(given[TLS_ENABLED]) and given["zookeeper.ssl.keystore.location"] is not None


def check_together(values: Mapping[str, Value]) -> None:
    """Raises ConfigError if the keys contradict each other."""
    if values[TLS_ENABLED] and values[CLIENT_SOCKET] == NIO:
        raise ConfigError(
            f"{CLIENT_SOCKET}={NIO} has no TLS, and {TLS_ENABLED}=true: set {CLIENT_SOCKET}={NETTY}",
            CLIENT_SOCKET,
        )
    if values[SET_ACL] and values[CONNECT] and values[JAAS] is None and not has_certificate(values):
        raise ConfigError(
            f"{SET_ACL}=true: ZooKeeper must know the brokers: set {JAAS}, or {TLS_ENABLED}=true with"
            " zookeeper.ssl.keystore.location",
            SET_ACL,
        )


def with_jaas_file(
    given: Mapping[str, str], environ: Mapping[str, str], read: Callable[[str], str]
) -> dict[str, str]:
    """`given`, if it has no credentials, with those of the JAAS file in KAFKA_OPTS. Raises ConfigError."""
    properties = _java_properties(environ.get("KAFKA_OPTS", ""))
    path = properties.get("java.security.auth.login.config")
    if (
        not given.get(CONNECT, "").strip()
        or JAAS in given
        or path is None
        or properties.get("zookeeper.sasl.client", "").lower() == "false"
    ):
        return dict(given)
    name = properties.get("zookeeper.sasl.clientconfig", "Client")
    where = f"KAFKA_OPTS: java.security.auth.login.config={path}"
    try:
        found = section(read(path), name)
        if found is None:
            return dict(given)
        login_module(found)
    except JaasError as error:
        raise ConfigError(f"{where}: section {name}: {error}", JAAS) from None
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}", JAAS) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: cannot be read: it is not UTF-8 text", JAAS) from None
    return {**given, JAAS: found}


def _java_properties(options: str) -> dict[str, str]:
    """Java's system properties in a command line: -DNAME=VALUE."""
    try:
        words = shlex.split(options)
    except ValueError:  # a quotation mark without its other
        words = options.split()
    pairs = (word[2:].partition("=") for word in words if word.startswith("-D"))
    return {name: value for name, _, value in pairs}
