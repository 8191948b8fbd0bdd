"""Opens the cluster's tree: in ZooKeeper, or another store that brokers share; for a single broker, in a file of the
first log directory. Nothing else differs: a single broker wins every controller election, and sends itself the
controller's requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .config import BrokerConfig
from .coordination.coordination import Coordination
from .coordination.stores import Store
from .coordination.stores.ensemble import parse_connect
from .coordination.stores.file import FILE_NAME, FileStore
from .coordination.takeover import find_old, take_over
from .log.manager import Found, LogManager
from .topic_logs import adopted

OpenStore = Callable[[], Store]
"""Opens the store that the brokers of a cluster share; not connected yet."""


def shared_store(config: BrokerConfig) -> OpenStore | None:
    """ZooKeeper, as configured; None for a single broker. Raises ConfigError."""
    connect = config.text("zookeeper.connect").strip()
    if not connect:
        return None
    ensemble = parse_connect(connect)

    def open_zookeeper() -> Store:
        from .coordination.stores.zookeeper import ZooKeeperStore

        return ZooKeeperStore(ensemble, config.integer("zookeeper.session.timeout.ms") / 1000)

    return open_zookeeper


async def connect(
    open_shared: OpenStore | None, config: BrokerConfig, logs: LogManager, fail: Callable[[str], None]
) -> Coordination:
    """Wait for the shared store without limit; without one, read the file. Raises CoordinationError.

    `fail` ends the broker once the contents of the file are no longer known.
    """
    nodes: Store
    known = logs.cluster_id
    if open_shared is None:
        home = logs.dirs[0]
        old = find_old(home.path)
        nodes = FileStore(home.path / FILE_NAME)
        nodes.failed, nodes.fatal = home.check, fail
        nodes.start()
        if old is not None:
            await take_over(nodes, old, config.integer("broker.id"))
            known = known or old.cluster_id
    else:
        nodes = open_shared()
    coordination = Coordination(nodes, known)
    try:
        await coordination.connect()
    except BaseException:
        await coordination.leave()
        raise
    return coordination


async def adopt(coordination: Coordination, found: Iterable[Found], logs: LogManager, broker_id: int) -> None:
    """Adopt topics from the logs of a single broker whose file is missing. Raises CoordinationError."""
    await coordination.adopt(lambda: adopted(found, logs, broker_id))
