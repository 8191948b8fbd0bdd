"""TLS to ZooKeeper's servers, by Kafka's keys `zookeeper.ssl.…`.

The files are read again whenever they have changed since the connection before, so a new certificate needs no restart.
If the new files cannot be used, the broker logs why and connects with what it read before.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from ...config.config import BrokerConfig
from ...config.config_types import ConfigError, Value
from ..file_states import file_states
from .contexts import configure
from .distinguished_name import subject
from .keystores import locations, read_keystore, read_truststore

PREFIX = "zookeeper."
_TYPES = {".jks": "JKS", ".p12": "PKCS12", ".pfx": "PKCS12", ".pem": "PEM"}
_ENDINGS = ", ".join(_TYPES)
_LOCATIONS = {f"ssl.{kind}.type": f"ssl.{kind}.location" for kind in ("keystore", "truststore")}
_PASSWORDS = {f"ssl.{kind}.password": f"ssl.{kind}.type" for kind in ("keystore", "truststore")}
_INLINE = ("ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.certificates")

log = logging.getLogger(__name__)


class ZooKeeperTlsValues:
    """The values of a listener's keys `ssl.…`, from the keys `zookeeper.ssl.…`.

    As in ZooKeeper, a store's type is by default that of its file's ending, and the password of a keystore in PEM
    format is that of its private key.
    """

    owner = "zookeeper.ssl"

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    def __getitem__(self, name: str) -> Value:
        if name in _INLINE:
            return None
        if name == "ssl.enabled.protocols":
            return self._protocols()
        if name in _LOCATIONS:
            return self._type(name)
        if name in _PASSWORDS and self[_PASSWORDS[name]] == "PEM":
            return None
        if name == "ssl.key.password" and self["ssl.keystore.type"] != "PEM":
            return None
        return self._config[self.name_of(name)]

    def text(self, name: str) -> str:
        value = self[name]
        assert isinstance(value, str), name
        return value

    def strings(self, name: str) -> list[str]:
        value = self[name]
        assert isinstance(value, list), name
        return value

    def name_of(self, name: str) -> str:
        return PREFIX + ("ssl.keystore.password" if name == "ssl.key.password" else name)

    def _protocols(self) -> list[str]:
        chosen = self._config.text("zookeeper.ssl.protocol")
        return self._config.strings("zookeeper.ssl.enabled.protocols") or (
            ["TLSv1.2", "TLSv1.3"] if chosen == "TLS" else [chosen]
        )

    def _type(self, name: str) -> str:
        chosen = self._config[self.name_of(name)]
        if isinstance(chosen, str):
            return chosen
        key = self.name_of(_LOCATIONS[name])
        location = str(self._config[key])
        found = _TYPES.get(Path(location).suffix.lower())
        if found is None and self._config[key] is not None:
            raise ConfigError(
                f"{key}={location}: set {self.name_of(name)}, or end its name with {_ENDINGS}",
                self.name_of(name),
            )
        return found or "JKS"


class ZooKeeperTls:
    """Blocking, for the thread that connects."""

    def __init__(self, config: BrokerConfig) -> None:
        """Raises ConfigError."""
        self._values = ZooKeeperTlsValues(config)
        self._verifies_hosts = bool(config.text("zookeeper.ssl.endpoint.identification.algorithm"))
        self._problem = ""
        self._seen = file_states(locations(self._values))
        self._context = self._read()

    @property
    def has_certificate(self) -> bool:
        return self._values["ssl.keystore.location"] is not None

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        seen = file_states(locations(self._values))
        if seen == self._seen:
            return self._context
        try:
            self._context = self._read()
        except ConfigError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("new files for ZooKeeper are refused, and the old ones stay in use: %s", error)
        else:
            self._seen, self._problem = seen, ""
        return self._context

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self._verifies_hosts
        keys, trusted = read_keystore(self._values), read_truststore(self._values)
        if not trusted:
            context.load_default_certs()
        configure(context, self._values, keys, trusted)
        if keys is not None:
            log.info(
                "ZooKeeper gets the certificate %s, valid until %s",
                subject(keys.certificate),
                keys.expires_at.isoformat(),
            )
        return context
