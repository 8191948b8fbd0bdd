"""ZooKeeper with TLS, with SASL, or with both: a server, and the keys by which brokers connect to it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

from millstream_harness.certificates import NAMES, Authority
from millstream_harness.zookeeper import ZooKeeperProcess

USERS = {"broker": "the brokers' secret"}
DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule"
NETTY = "org.apache.zookeeper.server.NettyServerCnxnFactory"


def login(user: str, password: str) -> str:
    """The value for `zookeeper.sasl.jaas.config`."""
    return f'{DIGEST} required username="{user}" password="{password}";'


class SecuredZooKeeper(ZooKeeperProcess):
    """With an authority: TLS, with a certificate of the authority. With users: SASL."""

    def __init__(
        self,
        folder: Path,
        *,
        authority: Authority | None = None,
        needs_client_certificate: bool = False,
        users: Mapping[str, str] | None = None,
        is_enforced: bool = False,
        names: Sequence[str] = NAMES,
    ) -> None:
        """`is_enforced`: only clients that authenticate by SASL are served. `names`: those of its certificate."""
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.authority: Authority | None = None
        self.users = users
        self._needs_client_certificate = needs_client_certificate
        self._is_enforced = is_enforced
        if authority is not None:
            self.certify(authority, names)

    def certify(self, authority: Authority, names: Sequence[str] = NAMES) -> None:
        """Write new certificates of this authority, for the server from its next start on."""
        self.authority = authority
        (self.folder / "trusted.pem").write_text(authority.pem)
        authority.issue("zookeeper", names).write(self.folder / "server.pem")
        authority.issue("test").write(self.folder / "test.pem")
        authority.issue("broker").write(self.folder / "broker.pem")

    def more_settings(self) -> dict[str, object]:
        settings: dict[str, object] = {}
        if self.authority is not None:
            settings |= {
                "serverCnxnFactory": NETTY,
                "ssl.enabledProtocols": "TLSv1.2,TLSv1.3",
                "clientPort": None,
                "clientPortAddress": None,
                "secureClientPort": self.port,
                "secureClientPortAddress": self.host,
                "ssl.keyStore.location": self.folder / "server.pem",
                "ssl.trustStore.location": self.folder / "trusted.pem",
                "ssl.clientAuth": "need" if self._needs_client_certificate else "none",
                "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
            }
        if self.users is not None:
            settings["authProvider.sasl"] = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
        if self._is_enforced:
            settings |= {"enforce.auth.enabled": "true", "enforce.auth.schemes": "sasl"}
        return settings

    def java_options(self) -> list[str]:
        if self.users is None:
            return []
        file = self.folder / "jaas.conf"
        users = " ".join(f'user_{name}="{password}"' for name, password in self.users.items())
        file.write_text(f"Server {{ {DIGEST} required {users}; }};")
        return [f"-Djava.security.auth.login.config={file}"]

    def socket(self) -> socket.socket:
        plain = super().socket()
        if self.authority is None:
            return plain
        context = ssl.create_default_context(cadata=self.authority.pem)
        context.check_hostname = False
        context.load_cert_chain(self.folder / "test.pem")
        return context.wrap_socket(plain, server_hostname="localhost")

    def config(self, **others: str) -> dict[str, str]:
        """Keys of a broker that connects; `others` replace or add keys, by their names with _ for dots."""
        found = {"zookeeper.connect": self.own_tree()}
        if self.authority is not None:
            found |= {
                "zookeeper.ssl.client.enable": "true",
                "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
                "zookeeper.ssl.truststore.location": str(self.folder / "trusted.pem"),
            }
            if self._needs_client_certificate:
                found["zookeeper.ssl.keystore.location"] = str(self.folder / "broker.pem")
        if self.users is not None:
            found["zookeeper.sasl.jaas.config"] = login(*next(iter(self.users.items())))
        return found | {name.replace("_", "."): value for name, value in others.items()}
