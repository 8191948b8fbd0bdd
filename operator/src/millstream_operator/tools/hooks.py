"""The chart's hooks: `python -m millstream_operator.tools.hooks apply-crds FOLDER` before an upgrade, and
`… release --operator NAMESPACE/RELEASE --lease NAMESPACE/NAME` after the operator was uninstalled.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from ..kubernetes.client import Kube, KubeError
from ..manager.claims import CLAIM
from ..manager.leadership import LEASES
from ..models import API_VERSION, KINDS
from ..state.status import release_finalizer

GONE_TIMEOUT_S = 90.0
VERSION = "millstream.dev/version"  # annotation of CRDs


@click.group()
def hooks() -> None:
    """The chart's hooks."""


@hooks.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def apply_crds(folder: Path) -> None:
    """Apply every CRD in FOLDER unless a newer one exists: Kubernetes would drop the fields that ours does not know."""
    kube = Kube.connect()
    for path in sorted(folder.glob("*.yaml")):
        wanted = yaml.safe_load(path.read_text())
        name = wanted["metadata"]["name"]
        live = kube.get(wanted["apiVersion"], wanted["kind"], None, name)
        if live is not None and () < _version(wanted) < _version(live):
            there = live["metadata"]["annotations"][VERSION]
            click.echo(
                f"kept {name} of the newer release {there}: with an older one its resources would lose fields"
            )
            continue
        kube.apply(wanted)
        click.echo(f"applied {path.name}")


def _version(definition: Mapping[str, Any]) -> tuple[int, ...]:
    """The release of a CRD; ``()`` if it names none, or one that is no plain release (1.2.0-rc1)."""
    said = (definition["metadata"].get("annotations") or {}).get(VERSION, "")
    return tuple(int(part) for part in said.split(".")) if re.fullmatch(r"\d+(\.\d+)*", said) else ()


@hooks.command()
@click.option(
    "--operator", required=True, help="NAMESPACE/RELEASE of the operator, which must be gone first."
)
@click.option("--lease", required=True, help="NAMESPACE/NAME of its Lease, the name of the release's claims.")
@click.option("--namespace", "namespaces", multiple=True, help="Namespace in which they act (repeatable).")
def release(operator: str, lease: str, namespaces: Sequence[str]) -> None:
    """Remove our finalizer from every resource, so that none hangs without an operator, and release the namespaces.

    Namespaces of other releases stay unchanged.
    """
    kube = Kube.connect()
    namespace, _, instance = operator.partition("/")
    labels = {"app.kubernetes.io/instance": instance, "app.kubernetes.io/component": "operator"}
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while kube.list("v1", "Pod", namespace, labels):  # it would restore them
        if time.monotonic() > deadline:
            raise click.ClickException(f"the operator is still there after {GONE_TIMEOUT_S:.0f} s")
        time.sleep(1.0)
    claims = [claim for where in namespaces or (None,) for claim in kube.named(LEASES, "Lease", where, CLAIM)]
    held_by = {
        claim["metadata"]["namespace"]: (claim.get("spec") or {}).get("holderIdentity") or ""
        for claim in claims
    }
    served = kube.served(API_VERSION)
    for kind in (kind for kind in KINDS if KINDS[kind].HELD and kind in served):
        for where in namespaces or (None,):
            for resource in kube.list(API_VERSION, kind, where, {}):
                if held_by.get(resource["metadata"]["namespace"], "") not in ("", lease):
                    continue  # another release acts there
                if release_finalizer(kube, resource):
                    name = resource["metadata"]["name"]
                    click.echo(f"released {kind} {resource['metadata']['namespace']}/{name}")
    for metadata in (
        claim["metadata"] for claim in claims
    ):  # last, because the next release to take a namespace holds its resources
        if held_by[metadata["namespace"]] == lease:
            kube.delete(LEASES, "Lease", metadata["namespace"], CLAIM, uid=metadata["uid"])
            click.echo(f"left namespace {metadata['namespace']}")


if __name__ == "__main__":
    try:
        hooks()
    except KubeError as error:
        sys.exit(f"the API server refused: {error}")
