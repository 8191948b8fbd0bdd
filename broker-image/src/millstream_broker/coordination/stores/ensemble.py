"""`zookeeper.connect`: the servers of the ensemble, and the place of the cluster's tree in it."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.config_types import ConfigError


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The servers, as kazoo takes them, and the path that stands for the root."""

    servers: str
    chroot: str

    def __str__(self) -> str:
        return self.servers + self.chroot


def parse_connect(text: str) -> Ensemble:
    """`HOST:PORT,HOST:PORT/CHROOT`; the port is 2181 by default; raises ConfigError."""

    def wrong(problem: str) -> ConfigError:
        return ConfigError(
            f"zookeeper.connect={text}: {problem}: expected HOST:PORT,HOST:PORT with an optional /PATH"
        )

    hosts, slash, path = text.strip().partition("/")
    servers = []
    for server in hosts.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not colon or server.strip().endswith("]"):
            host, port = server.strip(), "2181"
        if not host or (":" in host and not host.startswith("[")):
            raise wrong(f"{server.strip() or 'an empty server'} is not a server")
        if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise wrong(f"{port or 'an empty port'} is not a port")
        servers.append(f"{host}:{port}")
    path = path.rstrip("/")
    if slash and path and not all(path.split("/")):
        raise wrong(f"/{path} has an empty name in it")
    return Ensemble(",".join(servers), f"/{path}" if path else "")
