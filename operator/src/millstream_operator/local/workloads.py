"""Local workloads of ConsumerGroups: a process for each workload, which runs its consumers (see consumers.py).

DATA/consumers/NAME/  that process's input and output, and the logs of the consumers

Of the template, the first container's command, arguments and environment have an effect; its image has none. The
working folder is that of the command that starts the workload. In a Cluster that requires a login, a variable names
client.properties, as on Kubernetes.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ..kafka.connection import NOWHERE
from ..models import Cluster, ConsumerGroup
from ..models.conditions import Reason
from ..models.consumers import Consumers, Decide
from ..models.problem import Problem
from ..models.references import expanded
from ..reconcile.group.logins import ensure_login
from ..resources.certificates import CA
from ..resources.client_files import PROPERTIES
from ..resources.workload import (
    CONFIG,
    ConsumerLogin,
    configuration_secret,
    environment,
    selector,
)
from ..state.context import GroupParts
from . import consumers, processes
from .clusters import LocalCluster, folder_name
from .consumers import Running, WorkloadFile
from .folder import DataFolder
from .processes import Daemon, StartFailed

SETTLE_S = 5.0
GRACE_S = 30.0  # Kubernetes' default
STOP_EXTRA_S = 10.0


def stop_all(daemon: Daemon) -> bool:
    """Stop the process of a workload and its consumers, even those that a killed process has left.

    Returns whether it ran.
    """
    folder = Path(daemon.command[-1])
    workload: WorkloadFile | None = None
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        workload = msgspec.json.decode((folder / consumers.WORKLOAD).read_bytes(), type=WorkloadFile)
    ran = processes.stop(daemon, timeout=STOP_EXTRA_S + (GRACE_S if workload is None else workload.grace_s))
    if workload is not None:
        processes.stop_marked(workload.mark)
    with contextlib.suppress(OSError):
        (folder / consumers.CONSUMERS).unlink()
    return ran


class LocalWorkloads:
    """The workloads in a data folder. ``changes`` tells whether it may start and stop anything. Blocking."""

    def __init__(self, data: DataFolder, *, changes: bool = True) -> None:
        self.data = data
        self.changes = changes

    def address_of(self, services: GroupParts, cluster: Cluster) -> str:
        local = LocalCluster(self.data, cluster)
        return local.bootstrap if local.running() else NOWHERE

    def run(
        self,
        services: GroupParts,
        group: ConsumerGroup,
        cluster: Cluster,
        decide: Decide,
        *,
        paused: bool,
        is_reachable: bool,
    ) -> Consumers:
        """Run a process that runs the consumers. With scaling, that process decides their number."""
        workload = group.spec.workload
        assert workload is not None
        pod = workload.template.spec
        if not pod.containers[0].command:
            where = "spec.workload.template.spec.containers[0].command"
            words = f"{where}: required on this machine, because an image's program is unknown here"
            return Consumers(problem=Problem(Reason.WORKLOAD_REFUSED, words))
        if not self.changes or paused:
            return self._seen(group)
        ca_file = str(self._client(group) / CA)
        login = ensure_login(services, group, cluster, is_reachable=is_reachable, ca_file=ca_file)
        if isinstance(login, Problem):
            return replace(self._seen(group), problem=login)
        file = self._file(services, group, cluster, login)
        try:
            with processes.files_of_a_start():
                self._start(group, file)
        except StartFailed as error:
            return Consumers(problem=Problem(Reason.WORKLOAD_FAILED, str(error)))
        deadline = time.monotonic() + SETTLE_S
        while True:
            seen = self._seen(group)
            settled = seen.ready == seen.wanted == (seen.wanted if file.replicas is None else file.replicas)
            if seen.failure or (settled and seen.selector) or time.monotonic() > deadline:
                return seen
            time.sleep(processes.POLL_S)

    def stop(self, services: GroupParts, group: ConsumerGroup) -> str:
        """Stop the process and its consumers, even those that a killed process has left."""
        if not self.changes:
            return "the consumers to end"
        if (daemon := self.data.state.daemons.pop(self._key(group), None)) is not None:
            stop_all(daemon)
        return ""

    def _start(self, group: ConsumerGroup, wanted: WorkloadFile) -> None:
        key, folder = self._key(group), self._folder(group)
        self.data.make("consumers")
        folder.mkdir(exist_ok=True)
        file, text = folder / consumers.WORKLOAD, msgspec.json.encode(wanted)
        if not file.exists() or file.read_bytes() != text:
            aside = file.with_suffix(".new")
            aside.write_bytes(text)
            aside.replace(file)
        daemon = self.data.state.daemons.get(key)
        if daemon is None or not daemon.serves:
            with contextlib.suppress(OSError):
                (folder / consumers.CONSUMERS).unlink()
            program = [sys.executable, "-m", consumers.__name__, str(folder)]
            self.data.start(key, program, folder / "workload.log")

    def _file(
        self, services: GroupParts, group: ConsumerGroup, cluster: Cluster, login: ConsumerLogin | None
    ) -> WorkloadFile:
        workload = group.spec.workload
        assert workload is not None
        pod = workload.template.spec
        first = pod.containers[0]
        bootstrap = self.address_of(services, cluster)
        variables = environment(group, bootstrap)
        if login is not None:
            variables[CONFIG] = str(self._client(group) / PROPERTIES)
        for one in first.env:
            variables[one.name] = expanded(one.value, variables)
        known = self.data.state.resources[f"{group.kind}/{group.namespace}/{group.name}"]
        manifest = {name: value for name, value in known.items() if name != "status"}
        replicas = 1 if workload.replicas is None else workload.replicas
        grace = pod.termination_grace_period_seconds
        return WorkloadFile(
            group=manifest,
            bootstrap=bootstrap,
            cluster=None if login is None else self._login_manifest(cluster),
            login="" if login is None else login.version,
            command=[expanded(one, variables) for one in (*first.command, *first.args)],
            environment=variables,
            mark=self._mark(group),
            replicas=replicas if workload.scaling is None else None,
            grace_s=GRACE_S if grace is None else float(grace),
        )

    def _login_manifest(self, cluster: Cluster) -> dict[str, Any]:
        """Where the process logs in that decides the number of consumers, and with which Secrets."""
        known = self.data.state.resources[f"{cluster.kind}/{cluster.namespace}/{cluster.name}"]
        status = {"platform": known["status"]["platform"]}
        return {name: value for name, value in known.items() if name != "status"} | {"status": status}

    def _seen(self, group: ConsumerGroup) -> Consumers:
        daemon = self.data.state.daemons.get(self._key(group))
        wanted = group.spec.workload.replicas if group.spec.workload is not None else None
        if daemon is None or not daemon.serves:
            failure = "" if daemon is None else processes.last_words(daemon)
            return Consumers(wanted=1 if wanted is None else wanted, failure=failure)
        labels = ",".join(f"{key}={value}" for key, value in sorted(selector(group).items()))
        try:
            said = msgspec.json.decode((self._folder(group) / consumers.CONSUMERS).read_bytes(), type=Running)
        except (OSError, msgspec.MsgspecError):
            return Consumers(wanted=1 if wanted is None else wanted, selector=labels)
        return Consumers(said.wanted, said.running, said.running, labels, said.failure)

    def _key(self, group: ConsumerGroup) -> str:
        return f"consumers/{group.namespace}/{group.name}/0"

    def _folder(self, group: ConsumerGroup) -> Path:
        return self.data.path / "consumers" / folder_name(group.namespace, group.name)

    def _client(self, group: ConsumerGroup) -> Path:
        """The folder with the configuration of its clients."""
        return self.data.path / "users" / folder_name(group.namespace, configuration_secret(group))

    def _mark(self, group: ConsumerGroup) -> str:
        """Marks the consumers of exactly this resource in exactly this folder, not in a copy of it."""
        status = self.data.path.stat()
        return f"consumers-{group.metadata.uid}-{status.st_dev}:{status.st_ino}"
