"""A local Cluster: a process for each broker, with the same configuration as on Kubernetes, and one for its ZooKeeper.

    DATA/clusters/NAME/N/                       broker N's data
    DATA/clusters/NAME/broker-N.properties      its configuration file
    DATA/clusters/NAME/broker-N.log             its output
    DATA/clusters/NAME/zookeeper/, .cfg, .log   the same for ZooKeeper, if the Cluster runs its own (zookeeper_login)

Listeners are bound to 127.0.0.1, at ports from `ports`. If the Internal listener has authentication or TLS, brokers
have the listeners of their own that they have on Kubernetes: one among themselves, and with TLS one where this command,
workers and loads log in. The reconcile of Clusters decides what starts and restarts (brokers.py).
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ..models import Cluster, Listener, ListenerStatus
from ..models.cluster import PlatformStatus, PlatformTls
from ..models.conditions import Reason
from ..models.problem import Problem
from ..reconcile.cluster.platform import with_login
from ..resources.broker_config import DYNAMIC_CONFIG, PLATFORM_FILE, BrokerFiles, broker_config, properties
from ..resources.certificates import CA, brokers_secret, trust_secret
from ..resources.listeners import (
    PLATFORM,
    REPLICATION,
    all_listeners,
    external_listeners,
    kafka_name,
    platform_port,
    replication_port,
)
from ..resources.platform import login_secret
from . import ports, processes, zookeeper
from .folder import DataFolder
from .processes import Daemon, StartFailed
from .zookeeper_login import LOGIN, ZooKeeperLogin

JOURNAL = "coordination.journal"
"""What a broker without ZooKeeper knows of its topics."""
HTTP = "http"
HTTP_PORT = 9404
FREE_S = 2.0
"""How long to wait for a port that a program may have for a moment."""
START_TRIES = 3
Say = Callable[[str], None]


def command(name: str) -> str:
    """One of our commands: the one beside this Python, else the one on the PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def folder_name(namespace: str, name: str) -> str:
    """A folder name that no two resources share: `_` is in no resource's name."""
    return name if namespace == "default" else f"{namespace}_{name}"


class LocalCluster:
    """The processes of one Cluster. Blocking."""

    def __init__(self, data: DataFolder, cluster: Cluster) -> None:
        self.data = data
        self.state = data.state
        self.brokers = range(cluster.spec.brokers.replicas)
        self.folder = data.path / "clusters" / folder_name(cluster.namespace, cluster.name)
        self.owner = f"{cluster.namespace}/{cluster.name}"
        self.cluster = self._with_platform(cluster.completed)
        given = cluster.spec.zookeeper
        self.has_zookeeper = given is not None and given.connect is None
        self.login = ZooKeeperLogin(self.folder)

    def _with_platform(self, cluster: Cluster) -> Cluster:
        """With a closed Internal listener, the Cluster with its brokers' own listeners, and where this command logs in.

        Nothing has to change step by step as on Kubernetes, where the operator never loses its way to the brokers.
        """
        inside = cluster.spec.internal
        if inside.is_open:
            return replace(cluster, status=replace(cluster.status, platform=None))
        tls = PlatformTls.ON if inside.is_encrypted else PlatformTls.NONE
        secured = replace(cluster, spec=with_login(cluster.spec, tls))
        name, port = (
            (PLATFORM, platform_port(secured))
            if tls.has_listener
            else (REPLICATION, replication_port(secured))
        )
        platform = PlatformStatus(
            bootstrap=",".join(f"{ports.HOST}:{self._port(broker, name, port)}" for broker in self.brokers),
            secret=login_secret(cluster),
            ca_secret=trust_secret(cluster) if tls.has_listener else None,
            internal="Closed",
        )
        return replace(secured, status=replace(secured.status, platform=platform))

    @property
    def bootstrap(self) -> str:
        """Every broker's address, separated by commas."""
        return self._addresses(self.cluster.spec.internal)

    def _addresses(self, listener: Listener) -> str:
        return ",".join(
            f"{ports.HOST}:{self._port(broker, listener.name, listener.port)}" for broker in self.brokers
        )

    def running(self) -> list[int]:
        """The running brokers."""
        return [broker for broker in self.brokers if self._alive(self._key(broker)) is not None]

    def pid(self, broker: int) -> int:
        return self.state.daemons[self._key(broker)].pid

    def missing(self) -> Problem | None:
        """The names of processes that should run and do not."""
        dead = sorted(set(self.brokers).difference(self.running()))
        starts = "`millstream local up` starts"
        if self.has_zookeeper and self._alive(self._zookeeper_key) is None:
            return Problem(Reason.ZOOKEEPER_NOT_READY, f"ZooKeeper does not run: {starts} it")
        if len(dead) == 1:
            which = "the broker" if len(self.brokers) == 1 else f"broker {dead[0]}"
            return Problem(Reason.BROKERS_STARTING, f"{which} does not run: {starts} it")
        if dead:
            names = ", ".join(map(str, dead))
            return Problem(Reason.BROKERS_STARTING, f"brokers {names} do not run: {starts} them")
        return None

    def refusal(self) -> Problem | None:
        """The reason why the Cluster cannot run here."""
        there = self._with_data()
        if there and there[-1] >= len(self.brokers):
            return Problem(
                Reason.SCALE_DOWN_REFUSED,
                f"spec.brokers.replicas: {len(self.brokers)} is not allowed: {there[-1] + 1} brokers have data in "
                f"{self.folder}, and the local runtime cannot remove brokers",
            )
        return self._lost_tree(there)

    def has_run(self) -> bool:
        """Whether a broker has started by this spec, and not only by an earlier one with, or without, ZooKeeper."""
        return any(self.folder.glob("*/meta.properties")) and self._other_kind(self._with_data()) is None

    def _with_data(self) -> list[int]:
        return sorted(int(entry.name) for entry in self.folder.glob("[0-9]*") if entry.name.isdigit())

    def _other_kind(self, brokers: Sequence[int]) -> Problem | None:
        """The problem if brokers have the topics of a Cluster with ZooKeeper and the spec has none, or the reverse."""
        data = self._topics_in(brokers)
        if data is None:
            return None
        has_journal = any((self.folder / str(broker) / JOURNAL).exists() for broker in brokers)
        if self.cluster.spec.zookeeper is not None and has_journal:
            return Problem(
                Reason.INVALID_SPEC,
                f"spec.zookeeper: not allowed: {data} has the topics of a Cluster without ZooKeeper, which would be"
                " lost: leave spec.zookeeper out, or give the Cluster another name and mirror into it",
            )
        if self.cluster.spec.zookeeper is None and not has_journal:
            return Problem(
                Reason.INVALID_SPEC,
                f"spec.zookeeper: required: {data} has topics, and no {JOURNAL}: put spec.zookeeper back, or restore"
                " the file",
            )
        return None

    def _topics_in(self, brokers: Sequence[int]) -> Path | None:
        """The first broker's folder that has topics."""
        folders = (self.folder / str(broker) for broker in brokers)
        return next((folder for folder in folders if _has_topics(folder)), None)

    def _lost_tree(self, brokers: Sequence[int]) -> Problem | None:
        """The problem if brokers have topics, and ZooKeeper, or the journal of a single broker, does not know them."""
        data, tree = self._topics_in(brokers), self.folder / "zookeeper"
        if (problem := self._other_kind(brokers)) is not None:
            return problem
        if data is not None and self.has_zookeeper and not any(tree.glob("version-2/*")):
            return Problem(
                Reason.ZOOKEEPER_NOT_READY,
                f"{tree} has no data, and {data} has topics, which a new ZooKeeper does not know: restore {tree}, or"
                f" remove {self.folder} to start without records",
            )
        return None

    def stop(self) -> int:
        """Stop its processes, brokers before ZooKeeper, and forget them and their ports; return how many ran."""
        own = f"/{self.cluster.namespace}/{self.cluster.name}/"
        stopped = 0
        for kind in ("broker", "zookeeper"):
            for key in sorted(key for key in self.state.daemons if key.startswith(kind + own)):
                stopped += processes.stop(self.state.daemons.pop(key))
            for key in [key for key in self.state.ports if key.startswith(kind + own)]:
                del self.state.ports[key]
        return stopped

    # ZooKeeper

    def start_zookeeper(self) -> bool:
        """Start ZooKeeper if the Cluster runs its own; return False if there was nothing to do. Raises NotInstalled."""
        if not self.has_zookeeper or self._alive(self._zookeeper_key) is not None:
            return False
        file, data = self.folder / "zookeeper.cfg", self.folder / "zookeeper"
        line = zookeeper.command(
            file, self.login.server
        )  # first, so that without Java not even a folder is created

        def launch() -> None:
            port = self._zookeeper_port
            self.data.make("clusters")
            data.mkdir(parents=True, exist_ok=True)
            self.login.create()
            file.write_text(properties(zookeeper.config(data, port)))
            self.data.start(
                self._zookeeper_key,
                line,
                self.folder / "zookeeper.log",
                ready=lambda said: _ready(data, port),
                name="ZooKeeper",
            )

        self._launch(self._zookeeper_key, [(zookeeper.CLIENT, zookeeper.CLIENT_PORT)], launch)
        return True

    @property
    def _zookeeper_port(self) -> int:
        return self.state.ports[self._zookeeper_key][f"{zookeeper.CLIENT}:{zookeeper.CLIENT_PORT}"]

    # Brokers

    def start_brokers(self, say: Say) -> bool:
        """Start the brokers that do not run; return False if all ran. Raises StartFailed.

        They restart together if they connect to each other in another way than before; a single one waits for nobody.
        """
        running, stale = self.running(), self.stale()
        if stale and len(self.brokers) == 1:
            say(f"Cluster {self.cluster.name}: its configuration changed: the broker is restarted")
        elif together := any(map(self._connects_otherwise, stale)):
            say(
                f"Cluster {self.cluster.name}: brokers connect to each other in another way: all are restarted"
            )
        if stale and (len(self.brokers) == 1 or together):
            for broker in running:
                processes.stop(self.state.daemons[self._key(broker)])
            running = []
        for broker in self.brokers:
            if broker not in running:
                self._start(broker, say)
            elif self._is_as_asked(broker):  # configuration that running brokers accept may differ
                with processes.files_of_a_start():
                    self._file(broker).write_text(properties(self.config(broker)))
        return len(running) < len(self.brokers)

    def stale(self) -> list[int]:
        """The running brokers that must restart to have the Cluster's configuration."""
        return [broker for broker in self.running() if not self._is_as_asked(broker)]

    def restart(self, broker: int, say: Say) -> None:
        """Raises StartFailed."""
        processes.stop(self.state.daemons[self._key(broker)])
        self._start(broker, say)

    def encrypted_endpoints(self) -> dict[int, list[tuple[str, int]]]:
        """Where running brokers listen with TLS."""
        spec = self.cluster.spec
        encrypted = [(each.name, each.port) for each in spec.listeners if each.is_encrypted]
        encrypted += self._own_listeners() if spec.platform_tls.has_listener else []
        return {
            broker: [(ports.HOST, self._port(broker, *each)) for each in encrypted if each[0] != REPLICATION]
            for broker in self.running()
            if encrypted and self._is_as_asked(broker)
        }

    def listener_addresses(self) -> tuple[ListenerStatus, ...] | None:
        """The listeners of the status: external ones, which are on this machine like the others, and the Internal one
        if it is closed; None without any."""
        inside = self.cluster.spec.internal
        found = [
            ListenerStatus(
                name=listener.name,
                protocol=listener.protocol,
                ca_secret=trust_secret(self.cluster) if listener.is_encrypted else None,
                bootstrap=self._addresses(listener),
            )
            for listener in (*external_listeners(self.cluster), *(() if inside.is_open else (inside,)))
        ]
        return tuple(found) or None

    def config(self, broker: int) -> dict[str, str]:
        given = [(kafka_name(each), each.name, each.port) for each in all_listeners(self.cluster)]
        own = [(name, name, port) for name, port in self._own_listeners()]
        listeners = ",".join(
            f"{kafka}://{ports.HOST}:{self._port(broker, name, port)}" for kafka, name, port in (*given, *own)
        )
        files = BrokerFiles(
            keystore=self._secret_file(brokers_secret(self.cluster), f"broker-{broker}.pem"),
            truststore=self._secret_file(brokers_secret(self.cluster), CA),
            credentials=self._secret_file(login_secret(self.cluster), PLATFORM_FILE),
        )
        config = {
            **broker_config(self.cluster, files),
            "broker.id": str(broker),
            "log.dirs": str(self.folder / str(broker)),
            "listeners": listeners,
            "advertised.listeners": listeners,
            "inter.broker.listener.name": REPLICATION if own else kafka_name(self.cluster.spec.internal),
            "http.listener": f"{ports.HOST}:{self.state.ports[self._key(broker)][f'{HTTP}:{HTTP_PORT}']}",
        }
        if self.has_zookeeper:
            config["zookeeper.connect"] = f"{ports.HOST}:{self._zookeeper_port}"
            config |= self.login.config(sets_acls=all(map(self._logs_in, self.running())))
        return config

    def _secret_file(self, secret: str, key: str) -> str:
        return str(self.data.path / "users" / folder_name(self.cluster.namespace, secret) / key)

    def _own_listeners(self) -> list[tuple[str, int]]:
        """Those that the spec does not have: name, and the port that is tried first."""
        spec = self.cluster.spec
        own = [(REPLICATION, replication_port(self.cluster))] if spec.platform_login else []
        return [*own, (PLATFORM, platform_port(self.cluster))] if spec.platform_tls.has_listener else own

    def _connects_otherwise(self, broker: int) -> bool:
        """Whether a running broker connects to others at another listener, or by another protocol."""
        try:
            before = self._file(broker).read_text()
        except OSError:
            return False
        return _among_brokers(before) != _among_brokers(properties(self.config(broker)))

    def _logs_in(self, broker: int) -> bool:
        """Whether a running broker logs in to ZooKeeper."""
        try:
            return LOGIN in self._file(broker).read_text()
        except OSError:
            return False

    def _start(self, broker: int, say: Say) -> None:
        key, file = self._key(broker), self._file(broker)
        before = self.state.ports.get(key)

        def launch() -> None:
            self.data.make("clusters")
            self.folder.mkdir(exist_ok=True)
            file.write_text(properties(self.config(broker)))
            log = self.folder / f"broker-{broker}.log"
            self.data.start(key, [command("millstream-broker"), str(file)], log)

        try:
            if broker == 0:
                self._check_fixed(key)
            self._launch(key, self._asked(), launch)
        except StartFailed as error:
            raise StartFailed(f"broker {broker}: {error}" if len(self.brokers) > 1 else str(error)) from error
        if broker > 0 or self.state.ports[key] == before:
            return  # of several brokers, all but the first get the following ports: nothing to report
        for listener in all_listeners(self.cluster):
            if (port := self._port(broker, listener.name, listener.port)) != listener.port:
                say(
                    f"Cluster {self.cluster.name}: {self._who_has(listener.port)}: {listener.name} listens on {port}"
                )

    def _check_fixed(self, key: str) -> None:
        """StartFailed if another program has a port that the manifest names: clients would look for the broker there.

        Clusters of one folder may name the same port, as on Kubernetes; the next one gets another.
        """
        kept, ours = self.state.ports.get(key, {}), set[int]()
        for owner, found in self.state.ports.items():
            ours |= set(found.values()) if owner != key else set()
        self.data.stop(key)
        for index, listener in enumerate(self.cluster.spec.listeners):
            port = kept.get(f"{listener.name}:{listener.port}", listener.port)
            if port not in ours and not processes.wait_for(partial(ports.is_free, port), FREE_S):
                raise StartFailed(
                    f"spec.listeners[{index}].port: {port} is in use by another program: stop it (`ss -ltnp | grep"
                    f" {port}` names it), or choose another port; without spec.listeners any free port is taken"
                )

    def _who_has(self, port: int) -> str:
        """Why a port is not free, in words: a stopped Cluster keeps its ports."""
        for key, ports_of_key in sorted(self.state.ports.items()):
            kind, *names = key.split("/")
            if (
                kind == "broker"
                and port in ports_of_key.values()
                and names[:2] != [self.cluster.namespace, self.cluster.name]
            ):
                if key in self.state.daemons:
                    return f"port {port} belongs to Cluster {names[1]}"
                return (
                    f"port {port} belongs to the stopped Cluster {names[1]} (`millstream local down --delete-data`"
                    " frees it, and deletes all data of this folder)"
                )
        return f"port {port} is in use"

    def _is_as_asked(self, broker: int) -> bool:
        asked = {f"{name}:{port}" for name, port in self._asked()}
        if asked != self.state.ports.get(self._key(broker), {}).keys():
            return False
        try:
            return _static(self._file(broker).read_text()) == _static(properties(self.config(broker)))
        except OSError:
            return False

    # Processes and their ports

    def _launch(self, key: str, asked: Sequence[tuple[str, int]], launch: Callable[[], None]) -> None:
        self.data.stop(key)  # a broker whose start was interrupted has the ports
        for tries_left in reversed(range(START_TRIES)):
            others = [
                port for owner, kept in self.state.ports.items() if owner != key for port in kept.values()
            ]
            with processes.files_of_a_start():
                self.state.ports[key] = ports.choose(asked, self.state.ports.get(key, {}), others)
            try:
                with processes.files_of_a_start():
                    launch()
            except StartFailed as error:
                # Between our check of a port and its use, another process may have taken it, perhaps for a moment.
                was_taken = os.strerror(errno.EADDRINUSE) in str(error)
                if tries_left and (was_taken or not all(map(ports.is_free, self.state.ports[key].values()))):
                    continue
                raise
            return

    def _alive(self, key: str) -> Daemon | None:
        found = self.state.daemons.get(key)
        return found if found is not None and found.serves else None

    def _asked(self) -> list[tuple[str, int]]:
        given = [(listener.name, listener.port) for listener in all_listeners(self.cluster)]
        return [*given, *self._own_listeners(), (HTTP, HTTP_PORT)]

    def _port(self, broker: int, listener: str, port: int) -> int:
        """The listener's port, present or future; ``port``: the one that is tried first."""
        return self.state.ports.get(self._key(broker), {}).get(f"{listener}:{port}", port)

    def _key(self, broker: int) -> str:
        return f"broker/{self.owner}/{broker}"

    @property
    def _zookeeper_key(self) -> str:
        return f"zookeeper/{self.cluster.namespace}/{self.cluster.name}/0"

    def _file(self, broker: int) -> Path:
        return self.folder / f"broker-{broker}.properties"


def _static(text: str) -> list[str]:
    """The lines of a configuration file that a broker reads only once."""
    return [line for line in text.splitlines() if line.partition("=")[0] not in DYNAMIC_CONFIG]


def _has_topics(folder: Path) -> bool:
    """Whether a broker's folder has a partition, or a stray of one."""
    return any(re.search(r"-[0-9]+(\.[0-9a-f]{32}-stray)?$", entry.name) for entry in folder.glob("*-*"))


def _among_brokers(text: str) -> tuple[str, str]:
    """By the text of a broker's configuration: the listener by which it connects to others, and its protocol."""
    found = {key: value for key, _, value in (line.partition("=") for line in text.splitlines())}
    name = found.get("inter.broker.listener.name", "")
    protocols = dict(
        one.split(":", 1) for one in found.get("listener.security.protocol.map", "").split(",") if ":" in one
    )
    return name, protocols.get(name, "")


def _ready(data: Path, port: int) -> dict[str, str] | None:
    return {"listeners": f"{ports.HOST}:{port}"} if zookeeper.serves(data, port) else None
