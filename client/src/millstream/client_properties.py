"""Kafka's client properties, in Java's spelling or librdkafka's, as librdkafka's settings. No message has a value.

Settings that both clients have under one name, and those of librdkafka alone, do not change.

    sasl.jaas.config                                    user name and password, or a client's id and secret
    ssl.truststore.location, ssl.truststore.certificates    authorities, in PEM format
    ssl.keystore.location, ssl.keystore.certificate.chain, ssl.keystore.key    the client's certificate, PEM or PKCS#12
    ssl.endpoint.identification.algorithm               empty: the broker's name is not checked
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from millstream.errors import BadInput

PEM: Final = b"-----BEGIN "
JAVA_ALONE: Final = frozenset(
    f"{part}.{end}" for part in ("key", "value") for end in ("serializer", "deserializer")
) | {"sasl.login.class", "sasl.login.callback.handler.class", "interceptor.classes", "metric.reporters"}
"""Names of Java classes: without effect here."""
CONVERT: Final = {
    "JKS": "convert it: keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12",
    "PKCS12": "write its certificates in PEM format: openssl pkcs12 -in FILE -nokeys -out ca.pem",
}
SPELLING: Final = {
    "sasl.username and sasl.password": "sasl.jaas.config",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.certificate.location and ssl.key.location": "ssl.keystore.location",
    "ssl.endpoint.identification.algorithm=none": "an empty ssl.endpoint.identification.algorithm",
}
"""Advice about librdkafka's settings, and the same about Java's."""
_JAAS: Final = re.compile(
    r"""\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)
        (?P<options>(?:\s+[\w.]+\s*=\s*(?:"(?:[^"\\]|\\.)*"|[^\s";]+))*)\s*;?\s*""",
    re.VERBOSE | re.DOTALL,
)
_OPTION: Final = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))""", re.DOTALL)
ESCAPED: Final = frozenset(
    (
        *("sasl.jaas.config", "ssl.truststore.certificates"),
        *("ssl.keystore.certificate.chain", "ssl.keystore.key"),
    )
)
"""Names of Java's alone whose values, in a file, have Java's escapes."""
Config = dict[str, Any]


def is_java(given: Mapping[str, Any]) -> bool:
    """Whether settings have Java's spelling: they include a name that librdkafka does not know."""
    return any(key in _TRANSLATED and not key.startswith("ssl.endpoint") for key in given)


def spelled(advice: str, given: Mapping[str, Any]) -> str:
    """Advice that names settings as these do."""
    if is_java(given):
        for ours, javas in SPELLING.items():
            advice = advice.replace(ours, javas)
    return advice


def translated(given: Mapping[str, Any], where: str = "config") -> Config:
    """librdkafka's settings. BadInput begins with ``where``."""
    found: Config = {}
    for key, value in given.items():
        if key in JAVA_ALONE:
            continue
        translate = _TRANSLATED.get(key)
        for name, meaning in (translate or _same)(key, value, given, where):
            if found.get(name, meaning) != meaning or (
                translate is not None and name in given and name != key
            ):
                raise BadInput(f"{where}: {key} is given, and so is {name}", "give one of them")
            found[name] = meaning
    return found


def _same(key: str, value: Any, given: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    yield key, value


def _jaas(key: str, value: Any, given: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    entry = _JAAS.fullmatch(str(value))
    if entry is None:
        raise BadInput(
            f"{where}: {key} cannot be read",
            'write MODULE required username="NAME" password="PASSWORD"; with the semicolon',
        )
    options = {
        name: re.sub(r"\\(.)", r"\1", quoted) if quoted or not plain else plain
        for name, quoted, plain in _OPTION.findall(entry["options"])
    }
    module = entry["module"].rpartition(".")[2]
    wanted = _MODULES.get(module)
    if wanted is None:
        raise BadInput(
            f"{where}: {key}: login module {module} is not supported", f"use {', '.join(_MODULES)}"
        )
    if missing := [option for option in wanted if option not in options]:
        raise BadInput(
            f"{where}: {key} has no {missing[0]}", f'write {missing[0]}="..." before the semicolon'
        )
    for option, name in wanted.items():
        yield name, options[option]
    if module == "OAuthBearerLoginModule":
        yield "sasl.oauthbearer.method", "oidc"
        if "scope" in options:
            yield "sasl.oauthbearer.scope", options["scope"]


_USER: Final = {"username": "sasl.username", "password": "sasl.password"}
_MODULES: Final = {
    "PlainLoginModule": _USER,
    "ScramLoginModule": _USER,
    "OAuthBearerLoginModule": {
        "clientId": "sasl.oauthbearer.client.id",
        "clientSecret": "sasl.oauthbearer.client.secret",
    },
}


def _truststore(key: str, value: Any, given: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    kind = _kind("truststore", str(value), given, where)
    if kind != "PEM":
        raise BadInput(f"{where}: {key}: {value} is a {kind} truststore, and PEM is needed", _convert(kind))
    yield "ssl.ca.location", value


def _keystore(key: str, value: Any, given: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    kind = _kind("keystore", str(value), given, where)
    if kind == "JKS":
        raise BadInput(f"{where}: {key}: {value} is a JKS keystore", _convert(kind))
    if kind == "PKCS12":
        yield key, value
        return
    yield "ssl.certificate.location", value
    yield "ssl.key.location", value


def _convert(kind: str) -> str:
    return CONVERT.get(kind, CONVERT["JKS"])


def _kind(store: str, path: str, given: Mapping[str, Any], where: str) -> str:
    """The format of a store: the one that is given, otherwise the one that it has."""
    key = f"ssl.{store}.location"
    try:
        with Path(path).open("rb") as file:
            content = file.read(1 << 20)
    except OSError as error:
        raise BadInput(
            f"{where}: {key}: {path} cannot be read: {error.strerror}", "name a file in PEM format"
        ) from None
    said = str(given.get(f"ssl.{store}.type", "")).upper()
    found = (
        "PEM"
        if PEM in content
        else "JKS"
        if content[:4] in (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
        else "PKCS12"
    )
    if said == "PEM" and found != "PEM":
        raise BadInput(
            f"{where}: {key}: {path} is not in PEM format", f"set ssl.{store}.type, or name another"
        )
    return found


def _nothing(key: str, value: Any, given: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """Settings that others imply."""
    yield from ()


def _keystore_password(
    key: str, value: Any, given: Mapping[str, Any], where: str
) -> Iterator[tuple[str, Any]]:
    location = given.get("ssl.keystore.location")
    if location is None or _kind("keystore", str(location), given, where) == "PKCS12":
        yield key, value


def _named(name: str) -> Callable[..., Iterator[tuple[str, Any]]]:
    def renamed(key: str, value: Any, given: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
        yield name, value

    return renamed


def _checks_name(key: str, value: Any, given: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    yield key, value or "none"


_TRANSLATED: Final[Mapping[str, Callable[..., Iterator[tuple[str, Any]]]]] = {
    "sasl.jaas.config": _jaas,
    "ssl.truststore.location": _truststore,
    "ssl.truststore.certificates": _named("ssl.ca.pem"),
    "ssl.truststore.type": _nothing,
    "ssl.truststore.password": _nothing,
    "ssl.keystore.location": _keystore,
    "ssl.keystore.type": _nothing,
    "ssl.keystore.password": _keystore_password,
    "ssl.keystore.certificate.chain": _named("ssl.certificate.pem"),
    "ssl.keystore.key": _named("ssl.key.pem"),
    "ssl.endpoint.identification.algorithm": _checks_name,
}
