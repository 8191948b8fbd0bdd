"""Opens the cluster's tree: in ZooKeeper, or another store that brokers share; for a single broker, in a file of a log
directory, by default the first. Nothing else differs: a single broker wins every controller election, and sends itself
the controller's requests.

A broker whose log directories have data starts only with the tree of their cluster. An empty tree is not taken for one
whose topics were deleted: the address may be wrong, or the tree lost. `unclean.coordination.enable` overrides that.
Even then no log is deleted; those that the tree does not know become strays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..config.config import BrokerConfig
from ..config.config_keys import AUTHORIZER
from ..config.zookeeper_keys import JAAS, SET_ACL, TLS_ENABLED, login_module
from ..coordination import OVERRIDE, CoordinationError
from ..coordination.coordination import Coordination
from ..coordination.stores import Store
from ..coordination.stores.ensemble import parse_connect
from ..coordination.stores.file import FILE_NAME, FileStore
from ..coordination.takeover import OLD_FILE_NAME, find_old, take_over
from ..log.directory import LogDir
from ..log.manager import Found, LogManager
from ..metadata.topic_logs import adopted

if TYPE_CHECKING:
    from ..coordination.stores.zookeeper_connection import ZooKeeperAccess

FILE_NAMES = (FILE_NAME, OLD_FILE_NAME)
OpenStore = Callable[[], Store]
"""Opens the store that the brokers of a cluster share; not connected yet."""


def shared_store(config: BrokerConfig) -> OpenStore | None:
    """ZooKeeper, as configured; None for a single broker. Raises ConfigError."""
    connect = config.text("zookeeper.connect").strip()
    if not connect:
        return None
    ensemble = parse_connect(connect)
    access = _access(config)

    def open_zookeeper() -> Store:
        from ..coordination.stores.zookeeper import ZooKeeperStore

        return ZooKeeperStore(ensemble, config.integer("zookeeper.session.timeout.ms") / 1000, access=access)

    return open_zookeeper


def _access(config: BrokerConfig) -> ZooKeeperAccess:
    """How to connect to ZooKeeper. Blocking. Raises ConfigError."""
    from ..coordination.stores.zookeeper_connection import ZooKeeperAccess

    tls = None
    if config.flag(TLS_ENABLED):
        from ..security.tls.zookeeper_tls import ZooKeeperTls

        tls = ZooKeeperTls(config)
    credentials = None
    if config[JAAS] is not None:
        options = login_module(config.text(JAAS)).options
        credentials = options["username"], options["password"]
    return ZooKeeperAccess(
        tls.context if tls is not None else None,
        tls is not None and tls.has_certificate,
        credentials,
        config.flag(SET_ACL),
    )


async def connect(
    open_shared: OpenStore | None, config: BrokerConfig, logs: LogManager, fail: Callable[[str], None]
) -> Coordination:
    """Wait for the shared store without limit; without one, read the file. Raises CoordinationError.

    `fail` ends the broker once the contents of the file are no longer known.
    """
    nodes: Store
    known = logs.cluster_id
    accepts = config.flag(OVERRIDE)
    has_data = not accepts and logs.has_data()

    def check(stored: str | None) -> None:
        if not accepts and ((stored is None and has_data) or known not in (None, stored or known)):
            raise CoordinationError(_refusal(nodes, stored, config, logs))

    if open_shared is None:
        home = find_home(logs, is_new=accepts or (known is None and not has_data))
        old = find_old(home.path)
        nodes = FileStore(home.path / FILE_NAME)
        nodes.failed, nodes.fatal = home.check, fail
        logs.tree_in = home.path
        nodes.start()
        if old is not None:
            await take_over(nodes, old, config.integer("broker.id"))
            known = known or old.cluster_id
            has_data = False
    else:
        nodes = open_shared()
    has_acls = bool(config.text(AUTHORIZER))
    coordination = Coordination(nodes, known, has_acls=has_acls, check=check, fail=fail)
    try:
        await coordination.connect()
    except BaseException:
        await coordination.leave()
        raise
    return coordination


def find_home(logs: LogManager, *, is_new: bool) -> LogDir:
    """The log directory with the file; the first one for a new broker. Raises CoordinationError.

    It may be any of them: their order may have changed.
    """
    homes = [home for home in logs.dirs if any((home.path / name).exists() for name in FILE_NAMES)]
    if len(homes) > 1:
        where = " and ".join(str(home.path) for home in homes)
        raise CoordinationError(
            f"log.dirs: {where} each have {FILE_NAME}, with topics and their configuration. Only one of them is this"
            " broker's: move the other one away."
        )
    if homes:
        return homes[0]
    if logs.offline:
        reasons = " ".join(logs.offline.values())
        raise CoordinationError(
            f"{reasons} No other log directory has {FILE_NAME}, without which the broker cannot start."
        )
    if not is_new:
        raise CoordinationError(
            f"log.dirs: {_paths(logs)} belong to cluster {logs.cluster_id}, but none has {FILE_NAME}, with the"
            " topics and their configuration. Add the directory that has it to log.dirs, or restore it from a copy; if"
            " the broker belongs to a cluster of several, set zookeeper.connect. Without a copy, start once with"
            f" --override {OVERRIDE}=true: the broker continues with the topics whose logs it has, without their"
            " configuration, and deletes none of their records until they are configured."
        )
    return logs.dirs[0]


def _refusal(nodes: Store, stored: str | None, config: BrokerConfig, logs: LogManager) -> str:
    """Why a broker with data does not start with this tree."""
    tree = "has no cluster" if stored is None else f"has the tree of cluster {stored}"
    connect = config.text("zookeeper.connect").strip()
    alone = [str(home.path / FILE_NAME) for home in logs.dirs if (home.path / FILE_NAME).exists()]
    if connect and alone:
        advice = (
            f"{alone[0]} shows that this broker was a cluster by itself. Its topics do not move to ZooKeeper: remove"
            " zookeeper.connect, or start with empty log directories and copy the topics with a mirror."
        )
    elif connect:
        advice = (
            f"Check zookeeper.connect={connect}, with its chroot; if the tree was lost, restore it from a copy. Or give"
            " this broker its own log.dirs."
        )
    else:
        advice = "Restore the file from a copy, or give this broker its own log.dirs."
    return (
        f"{nodes} {tree}, but log.dirs: {_paths(logs)} belong to cluster {logs.cluster_id}. {advice}"
        f" --override {OVERRIDE}=true starts the broker nevertheless; logs that the tree does not know are kept, but"
        " not served."
    )


def _paths(logs: LogManager) -> str:
    return ",".join(str(home.path) for home in logs.dirs)


async def adopt(coordination: Coordination, found: Iterable[Found], logs: LogManager, broker_id: int) -> None:
    """Adopt topics from the logs of a single broker whose file is missing. Raises CoordinationError."""
    await coordination.adopt(lambda: adopted(found, logs, broker_id))
