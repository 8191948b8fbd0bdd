"""`millstream user config USER`: a client configuration with a User's password, from Kubernetes or this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..kubernetes.client import Kube
    from ..models import Cluster, User


@click.group()
def user() -> None:
    """Users of clusters that the operator or `millstream local` runs."""


@user.command("config")
@click.argument("name", metavar="USER")
@click.option("--namespace", "-n", default="default", show_default=True, help="Namespace of the User.")
@click.option(
    "--format", "-F", "form", type=click.Choice(["java", "librdkafka", "python"]), default="java",
    show_default=True, help="For Kafka's Java clients (and this command's --config), librdkafka, or Python.",
)  # fmt: skip
@click.option(
    "--listener", metavar="NAME", help="Listener of the Cluster (default: its first with authentication)."
)
@click.option("--address", metavar="HOST:PORT", help="Address to connect to, instead of a listener's.")
@click.option(
    "--ca", "authority", metavar="FILE", help="For a listener with TLS: authorities to trust, in PEM format."
)
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path),
    help="Data folder of `millstream local`, instead of the Kubernetes cluster of your kubeconfig.",
)  # fmt: skip
def user_config(
    name: str,
    namespace: str,
    form: str,
    listener: str | None,
    address: str | None,
    authority: str | None,
    data: Path | None,
) -> None:
    """Print a client configuration for a User, with its password.

    Save it where no one else reads it: (umask 077; millstream user config app > app.properties)
    """
    from ..kubernetes.client import KubeError
    from ..resources.client_files import FORMATS, ClientLogin

    try:
        kube = _local(data) if data is not None else _kubernetes()
        found = _user(kube, namespace, name)
        password = _password(kube, found)
        bootstrap = address or _address(_cluster(kube, found), listener)
    except KubeError as error:
        raise click.ClickException(f"the Kubernetes API server answers: {error}") from None
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    click.echo(FORMATS[form](ClientLogin(bootstrap, found.user_name, password, authority or "")), nl=False)


def _local(data: Path) -> Kube:
    from ..local.api import LocalApi
    from ..local.state import StateError, Store
    from ..local.user_secrets import UserSecrets

    store = Store(data.absolute())
    if not store.exists:
        raise ValueError(f"--data: {data} is not a data folder of `millstream local`: it has no state.json")
    try:
        return LocalApi(store.load(), UserSecrets(data.absolute() / "users"))
    except StateError as error:
        raise ValueError(str(error)) from None


def _kubernetes() -> Kube:
    from kubernetes.config import ConfigException

    from ..kubernetes.client import Kube

    try:
        return Kube.connect()
    except ConfigException as error:
        raise ValueError(
            f"no Kubernetes cluster: {error}: set KUBECONFIG, or name a data folder of `millstream local` in --data"
        ) from None


def _resource(kube: Kube, kind: type[Any], namespace: str, name: str) -> Any:
    from ..models import API_VERSION, decode_as

    manifest = kube.get(API_VERSION, kind.KIND, namespace, name)
    if manifest is None:
        raise ValueError(f"there is no {kind.KIND} {name} in namespace {namespace}")
    return decode_as(kind, manifest)


def _user(kube: Kube, namespace: str, name: str) -> User:
    from ..models import User

    found: User = _resource(kube, User, namespace, name)
    return found


def _cluster(kube: Kube, user: User) -> Cluster:
    from ..models import Cluster
    from ..reconcile.common.reference import cluster_key

    key = cluster_key(user.namespace, user.spec.cluster_ref)
    found: Cluster = _resource(kube, Cluster, key.namespace, key.name)
    return found


def _password(kube: Kube, user: User) -> str:
    from ..resources.user import password_of

    key = user.password_key
    if key is None:
        raise ValueError(f"User {user.name} has no password: its spec has no authentication")
    secret = kube.get("v1", "Secret", user.namespace, key.name)
    if secret is None:
        ready = next((one for one in user.status.conditions or () if one.type == "Ready"), None)
        why = ready.message if ready is not None else "the operator has not looked at it yet"
        raise ValueError(f"User {user.name} has no Secret {key.name} yet: {why}")
    return password_of(secret, key.key)


def _address(cluster: Cluster, listener: str | None) -> str:
    addresses = {one.name: one.bootstrap for one in cluster.status.listeners or () if one.bootstrap}
    if not addresses and cluster.status.bootstrap:
        addresses = {cluster.spec.internal.name: cluster.status.bootstrap}
    if not addresses:
        raise ValueError(
            f"Cluster {cluster.name} has no address yet: wait until it is Ready, or give --address"
        )
    if listener is None:
        secured = {one.name for one in cluster.spec.listeners if one.authentication is not None}
        return next((at for name, at in addresses.items() if name in secured), next(iter(addresses.values())))
    if listener not in addresses:
        raise ValueError(
            f"--listener: Cluster {cluster.name} has no {listener}: it has {', '.join(addresses)}"
        )
    return addresses[listener]
