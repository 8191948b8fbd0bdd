"""The ZooKeeper server of a local Cluster: Apache ZooKeeper from pyspark's jars, one server with one folder.

One is enough on one machine: a failure that would end one of three would end all.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from . import ports
from .java import find_java, pyspark_folder

CLIENT, CLIENT_PORT = "client", 2181
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS = (
    "zookeeper-",
    "slf4j-api",
    "log4j-",
    "netty-",
    "metrics-core",
    "snappy-java",
    "commons-cli",
    "commons-io",
)
# The heap starts small and grows as needed: otherwise the JVM touches most of it before it collects.
JVM = (
    "-Xms16M",
    "-Xmx256M",
    "-Xss256K",
    "-XX:ReservedCodeCacheSize=16M",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dorg.apache.logging.log4j.level=WARN",
)
_ASK_TIMEOUT_S = 1.0


def command(file: Path, login: Path) -> list[str]:
    """The command of a server with this configuration file, and that of SASL; raises NotInstalled."""
    sasl = f"-Djava.security.auth.login.config={login}"
    return [find_java(), *JVM, sasl, "-cp", classpath(), _MAIN, str(file)]


def classpath() -> str:
    """ZooKeeper's classpath, from pyspark's jars; raises NotInstalled."""
    jars = sorted((pyspark_folder() / "jars").glob("*.jar"))
    return os.pathsep.join(str(jar) for jar in jars if jar.name.startswith(_JARS))


def config(folder: Path, port: int) -> dict[str, str]:
    return {
        "dataDir": str(folder),
        "clientPort": str(port),
        "clientPortAddress": ports.HOST,
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "conf",
        "autopurge.purgeInterval": "24",
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    }


def serves(folder: Path, port: int) -> bool:
    """Whether the server of that folder (and not another process with the port) serves clients."""
    with contextlib.suppress(OSError), socket.create_connection((ports.HOST, port), _ASK_TIMEOUT_S) as asked:
        asked.sendall(b"conf")
        said = b"".join(iter(lambda: asked.recv(65536), b"")).decode(errors="replace")
        return f"dataDir={folder}/" in said
    return False
