"""The brokers of Clusters in a data folder, for the reconcile of Clusters: processes instead of pods. Blocking.

Rules of this place: brokers with data cannot be removed, a single broker restarts at once, and nothing is rebalanced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from ..models import Cluster, ListenerStatus
from ..models.conditions import Reason
from ..models.keys import Key
from ..models.problem import NewCondition, Problem
from ..models.roll import Roll, RollingPod
from ..reconcile.cluster.platform import rotate
from ..reconcile.common.pod_users import remove_unused_users
from ..resources.certificates import LAPTOP
from ..state.cache import key_for
from ..state.context import ClusterParts, Warn
from ..state.status import write_status
from .clusters import LocalCluster
from .folder import DataFolder
from .java import NotInstalled
from .logins import write_login
from .processes import StartFailed
from .secrets import Secrets
from .user_secrets import UserSecrets

CHANGED = ("ConfigurationChanged",)


class LocalBrokers:
    """``started`` has the Clusters whose processes run, and whether some of them were started."""

    def __init__(
        self, data: DataFolder, secrets: Secrets, files: UserSecrets, say: Callable[[str], None]
    ) -> None:
        self.data = data
        self.secrets = secrets
        self.files = files
        self.say = say
        self.started: dict[Key, bool] = {}
        self.restarting: set[Key] = set()

    def open(self, services: ClusterParts, cluster: Cluster) -> ProcessBrokers:
        return ProcessBrokers(self, services, cluster)


class ProcessBrokers:
    current: int | None = None
    rebalances = False

    def __init__(self, runtime: LocalBrokers, services: ClusterParts, cluster: Cluster) -> None:
        self.runtime = runtime
        self.services = services
        self.local = LocalCluster(runtime.data, cluster)
        self.cluster = replace(self.local.cluster, status=cluster.status)
        self.key = key_for(cluster)
        self.ready = len(self.local.running())
        self.servers = Roll()

    def conditions(self) -> Sequence[NewCondition]:
        """None: brokers listen on this machine only."""
        return ()

    def refusal(self) -> Problem | None:
        return self.local.refusal()

    def stage(self, warn: Warn) -> Problem | None:
        """This command's way to the brokers stands in the status, as on Kubernetes; brokers start with all logins."""
        self._connect()
        return write_login(self.services, self.local)

    def prepare(self, replicas: int, warn: Warn) -> Problem | None:
        try:
            self._started(self.local.start_zookeeper())
        except (NotInstalled, StartFailed) as error:
            return Problem(Reason.ZOOKEEPER_NOT_READY, str(error))
        return None

    def names(self, replicas: int) -> Mapping[int, frozenset[str]]:
        self.runtime.data.make("users", private=True)
        name, namespace = self.cluster.spec.own_authority, self.cluster.namespace
        if name is not None and (values := self.runtime.secrets.get((namespace, name))) is not None:
            self.runtime.files.take(namespace, name, values)
        return dict.fromkeys(range(replicas), LAPTOP)

    def endpoints(self) -> Mapping[int, Sequence[tuple[str, int]]]:
        return self.local.encrypted_endpoints()

    def run(self, replicas: int, warn: Warn) -> Problem | None:
        try:
            started = self.local.start_brokers(self.runtime.say)
            self._started(started)
            if started:
                self._connect()  # the ports are known now
                self.services.admins.retry(self.services.address_of(self.cluster))
        except StartFailed as error:
            return Problem(Reason.BROKER_FAILED, str(error))
        finally:
            self.ready = len(self.local.running())
        return None

    def pods(self) -> Sequence[RollingPod]:
        running, stale = self.local.running(), self.local.stale()
        return [
            RollingPod(broker, f"broker {broker}", broker in running, CHANGED if broker in stale else ())
            for broker in self.local.brokers
        ]

    def restart(self, roll: Roll) -> Problem | None:
        if self.key not in self.runtime.restarting:
            self.runtime.restarting.add(self.key)
            what = "brokers are restarted, one after the other"
            self.runtime.say(f"Cluster {self.cluster.name}: its configuration changed: {what}")
        if roll.restart is None:
            return None
        try:
            self.local.restart(roll.restart.number, self.runtime.say)
            self._started(True)
        except StartFailed as error:
            return Problem(Reason.BROKER_FAILED, str(error))
        finally:
            self.ready = len(self.local.running())
        return None

    def end(self) -> tuple[NewCondition | None, bool]:
        """Nothing: no release of the operator waits here."""
        return None, False

    def maintain(self) -> bool:
        continues = rotate(self.services, self.cluster)
        if self.cluster.status.platform is not None:
            remove_unused_users(self.services, self.cluster, self.services.brokers_of(self.cluster))
        return continues

    def addresses(self) -> tuple[str | None, tuple[ListenerStatus, ...] | None]:
        if not self.local.running():
            return None, None
        return self.local.bootstrap, self.local.listener_addresses()

    def _connect(self) -> None:
        self.local = LocalCluster(self.runtime.data, self.cluster)
        write_status(self.services, self.cluster, self.local.cluster.status)
        self.cluster = self.local.cluster

    def _started(self, started: bool) -> None:
        self.runtime.started[self.key] = started or self.runtime.started.get(self.key, False)
