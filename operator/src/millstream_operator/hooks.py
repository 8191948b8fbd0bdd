"""What the chart's hooks run: `python -m millstream_operator.hooks apply-crds FOLDER` before an upgrade, and
`… release --operator NAMESPACE/RELEASE --lease NAMESPACE/NAME` after the operator was uninstalled.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import yaml

from .claims import CLAIM
from .kube import Kube, KubeError
from .leadership import LEASES
from .models import API_VERSION, KINDS
from .status import release_finalizer

GONE_TIMEOUT_S = 90.0


@click.group()
def hooks() -> None:
    """The chart's hooks."""


@hooks.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def apply_crds(folder: Path) -> None:
    """Apply every definition in FOLDER."""
    kube = Kube.connect()
    for path in sorted(folder.glob("*.yaml")):
        kube.apply(yaml.safe_load(path.read_text()))
        click.echo(f"applied {path.name}")


@hooks.command()
@click.option(
    "--operator", required=True, help="NAMESPACE/RELEASE of the operator, which must be gone first."
)
@click.option("--lease", required=True, help="NAMESPACE/NAME of its Lease, the name of the release's claims.")
@click.option("--namespace", "namespaces", multiple=True, help="Only there (may be given again).")
def release(operator: str, lease: str, namespaces: Sequence[str]) -> None:
    """Take our finalizer off every resource, so that none hangs without an operator, and leave the namespaces to
    whoever watches them next. Namespaces of other releases stay as they are."""
    kube = Kube.connect()
    namespace, _, instance = operator.partition("/")
    labels = {"app.kubernetes.io/instance": instance, "app.kubernetes.io/component": "operator"}
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while kube.list("v1", "Pod", namespace, labels):  # it would put them back
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
    ):  # last: who takes a namespace holds its resources
        if held_by[metadata["namespace"]] == lease:
            kube.delete(LEASES, "Lease", metadata["namespace"], CLAIM, uid=metadata["uid"])
            click.echo(f"left namespace {metadata['namespace']}")


if __name__ == "__main__":
    try:
        hooks()
    except KubeError as error:
        sys.exit(f"the API server refused: {error}")
