"""What the chart's hooks run: `python -m millstream_operator.hooks apply-crds FOLDER` before an upgrade, and
`… release --operator NAMESPACE/RELEASE` after the operator was uninstalled.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import yaml

from .kube import Kube, KubeError
from .models import API_VERSION, ConsumerGroup, Topic
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
@click.option("--namespace", "namespaces", multiple=True, help="Only there (may be given again).")
def release(operator: str, namespaces: Sequence[str]) -> None:
    """Take our finalizer off every resource, so that none hangs without an operator. Nothing is deleted."""
    kube = Kube.connect()
    namespace, _, instance = operator.partition("/")
    labels = {"app.kubernetes.io/instance": instance, "app.kubernetes.io/component": "operator"}
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while kube.list("v1", "Pod", namespace, labels):  # it would put them back
        if time.monotonic() > deadline:
            raise click.ClickException(f"the operator is still there after {GONE_TIMEOUT_S:.0f} s")
        time.sleep(1.0)
    served = kube.served(API_VERSION)
    for kind in (Topic.KIND, ConsumerGroup.KIND):
        if kind not in served:
            continue
        for where in namespaces or (None,):
            for resource in kube.list(API_VERSION, kind, where, {}):
                if release_finalizer(kube, resource):
                    name = resource["metadata"]["name"]
                    click.echo(f"released {kind} {resource['metadata']['namespace']}/{name}")


if __name__ == "__main__":
    try:
        hooks()
    except KubeError as error:
        sys.exit(f"the API server refused: {error}")
