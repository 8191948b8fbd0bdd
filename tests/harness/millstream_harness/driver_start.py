"""How long a BatchLoad takes from `kubectl apply` to its driver's start: `python -P -m millstream_harness.driver_start`

It needs a Kubernetes with the operator and, in the namespace, a ready Cluster `default` with a topic that has records,
and a volume `lake`. In turn, it applies a BatchLoad, and copies of the operator's ConfigMap and Job for it
under other names. It measures the time from the start of `kubectl apply` until a watch shows the driver's container
running. The second time is that of Kubernetes alone; the difference is the operator's.

With `--runner SparkApplication` it measures the time until the SparkApplication exists, after which Kubeflow's operator
and Spark take as long as for any other. That needs the CRD of SparkApplications, and neither nodes nor
Kubeflow's operator.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from typing import Any

from .kube import Json, Namespace

RUN = "millstream.dev/run"
TIMEOUT_S = 120.0
RUNNERS = {"Job": "jobs.batch", "SparkApplication": "sparkapplications.sparkoperator.k8s.io"}
CREATED = "{.metadata.name}{' created\\n'}"
RUNNING = (
    "{.metadata.labels.job-name}{' '}"
    "{.status.containerStatuses[0].state.running.startedAt}{.status.containerStatuses[0].state.terminated.startedAt}{'\\n'}"
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="driver_start", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--topic", default="flights", help="it has records; default: flights")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runner", choices=tuple(RUNNERS), default="Job", help="default: Job")
    given = parser.parse_args(arguments)
    namespace = Namespace(given.namespace)
    ours, bare = [], []
    whole = ("--ignore-not-found", "--cascade=foreground")  # a terminating pod would take the processor
    for number in range(given.rounds):
        name = f"driver-start-{number}"
        try:
            ours.append(_applied(namespace, [load(name, given.topic, given.runner)], f"{name}-"))
            copies = by_hand(namespace, name, given.runner)
            bare.append(_applied(namespace, copies, copies[-1]["metadata"]["name"]))
        finally:
            namespace.kubectl("delete", "batchload.millstream.dev", name, *whole)
            kinds = f"{RUNNERS[given.runner]},configmap"
            namespace.kubectl("delete", kinds, "-l", "driver-start=by-hand", *whole)
        print(f"BatchLoad {ours[-1]:.2f} s, the same {given.runner} by hand {bare[-1]:.2f} s", flush=True)
    beyond = [one - other for one, other in zip(ours, bare, strict=True)]
    print(
        f"median of {given.rounds}: BatchLoad {statistics.median(ours):.2f} s, by hand {statistics.median(bare):.2f} s,"
        f" difference {statistics.median(beyond):.2f} s (at most {max(beyond):.2f} s)"
    )


def load(name: str, topic: str, runner: str) -> Json:
    return {
        "apiVersion": "millstream.dev/v1alpha1",
        "kind": "BatchLoad",
        "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": "default"},
            "topics": [topic],
            "from": {"position": "Earliest"},
            "value": {"format": "Text"},
            "output": {"path": f"/lake/{name}", "volumeClaimName": "lake"},
            "runner": runner,
        },
    }


def by_hand(namespace: Namespace, name: str, runner: str) -> list[Json]:
    """The load's ConfigMap and runner, to apply without the operator."""
    there = namespace.list(RUNNERS[runner])
    (found,) = [one for one in there if one["metadata"]["name"].startswith(f"{name}-")]
    own = found["metadata"]["name"]
    files = namespace.get("configmap", own)
    text = json.dumps([_bare(files), _bare(found)]).replace(own, f"by-hand-{name}")
    copies: list[Json] = json.loads(text)
    return copies


def _bare(manifest: Json) -> Json:
    """The object without fields that the API server and the operator added."""
    found = {key: value for key, value in manifest.items() if key != "status"}
    found["metadata"] = {"name": manifest["metadata"]["name"], "labels": {"driver-start": "by-hand"}}
    if found["kind"] == "Job":
        found["spec"] = {key: value for key, value in manifest["spec"].items() if key != "selector"}
        found["spec"]["template"]["metadata"] = {}
    return found


def _applied(namespace: Namespace, manifests: list[Json], runner: str) -> float:
    """Seconds from `kubectl apply` until a pod of the Job runs, or the SparkApplication exists.

    ``runner`` is the prefix of its name.
    """
    kind = manifests[-1]["spec"].get("runner") or manifests[-1]["kind"]
    what, shown = ("pods", RUNNING) if kind == "Job" else (RUNNERS[kind], CREATED)
    watch: Any = [
        "kubectl",
        "-n",
        namespace.name,
        "get",
        what,
        "--watch",
        f"--request-timeout={TIMEOUT_S:.0f}s",
        "-o",
        f"jsonpath={shown}",
    ]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching:
        try:
            begun = time.monotonic()
            namespace.apply({"apiVersion": "v1", "kind": "List", "items": manifests})
            assert watching.stdout is not None
            for line in watching.stdout:
                name, _, since = line.strip().partition(" ")
                if name.startswith(runner) and since:
                    return time.monotonic() - begun
        finally:
            watching.kill()
    raise SystemExit(f"nothing of {runner} within {TIMEOUT_S:.0f} s")


if __name__ == "__main__":
    main()
