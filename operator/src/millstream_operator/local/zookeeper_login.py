"""The password by which the brokers of a local Cluster log in to its ZooKeeper, in files that only the user can read.

    DATA/clusters/NAME/zookeeper.jaas      the server's configuration of SASL
    DATA/clusters/NAME/zookeeper.login     the brokers' login module, to which their configuration refers

A server gets them when it starts, so one that an earlier release has started has none until its next start.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from ..resources.broker_config import ZOOKEEPER_ACLS, ZOOKEEPER_KEY, ZOOKEEPER_LOGIN
from ..resources.zookeeper_login import brokers_login, servers_jaas
from .secrets import replace_file

LOGIN = ZOOKEEPER_LOGIN


class ZooKeeperLogin:
    """The files in a Cluster's folder."""

    def __init__(self, folder: Path) -> None:
        self.server = folder / "zookeeper.jaas"
        self.brokers = folder / "zookeeper.login"

    @property
    def exists(self) -> bool:
        return self.server.exists() and self.brokers.exists()

    def create(self) -> None:
        """Write the files, with a new password, unless they exist. OSError."""
        if self.exists:
            return
        password = secrets.token_urlsafe(32)
        replace_file(self.server, servers_jaas(password).encode())
        replace_file(self.brokers, brokers_login(password).encode())

    def config(self, *, sets_acls: bool) -> Mapping[str, str]:
        """The brokers' configuration; empty while the server has no login.

        ``sets_acls``: every broker that runs logs in. Otherwise it would be locked out.
        """
        if not self.exists:
            return {}
        found = {LOGIN: f"${{file:{self.brokers}:{ZOOKEEPER_KEY}}}"}
        return found | {ZOOKEEPER_ACLS: "true"} if sets_acls else found
