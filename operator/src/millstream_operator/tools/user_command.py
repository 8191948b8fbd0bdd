"""`millstream user config USER`: a client configuration with a User's password or certificate, from Kubernetes or this
machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..kubernetes.client import Kube
    from ..models import Cluster, ListenerStatus, User
    from ..resources.client_files import ClientTls


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
    "--ca", "authority", metavar="FILE",
    help="Authorities to trust, in PEM format, instead of the Cluster's (for an --address with TLS).",
)  # fmt: skip
@click.option(
    "--files", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="With TLS: write certificates and key to files in this folder, and name these. librdkafka needs it.",
)  # fmt: skip
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
    files: Path | None,
    data: Path | None,
) -> None:
    """Print a client configuration for a User, with its password or certificate.

    Save it where no one else reads it: (umask 077; millstream user config app > app.properties)
    """
    from ..kubernetes.client import KubeError
    from ..resources.client_files import FORMATS, ClientLogin

    try:
        kube = _local(data) if data is not None else _kubernetes()
        found = _user(kube, namespace, name)
        secret = _secret(kube, found)
        password = None if found.has_certificate else _password(found, secret)
        bootstrap, trusted = address, ""
        if address is None or found.has_certificate:
            cluster = _cluster(kube, found)
            where = _listener(cluster, found, listener)
            bootstrap = address or where.bootstrap
            trusted = _trusted(kube, cluster, where) if authority is None else ""
        tls = _tls(found, secret, trusted, authority, files, form)
    except KubeError as error:
        raise click.ClickException(f"the Kubernetes API server answers: {error}") from None
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(FORMATS[form](ClientLogin(bootstrap or "", found.user_name, password, tls)), nl=False)


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


def _secret(kube: Kube, user: User) -> dict[str, Any]:
    """The Secret with the User's credential."""
    key = user.password_key
    if key is None and not user.has_certificate:
        raise ValueError(f"User {user.name} has no password: its spec has no authentication")
    name = user.name if key is None else key.name
    secret: dict[str, Any] | None = kube.get("v1", "Secret", user.namespace, name)
    if secret is None:
        ready = next((one for one in user.status.conditions or () if one.type == "Ready"), None)
        why = ready.message if ready is not None else "the operator has not reconciled it yet"
        raise ValueError(f"User {user.name} has no Secret {name} yet: {why}")
    return secret


def _password(user: User, secret: dict[str, Any]) -> str:
    from ..resources.user import password_of

    assert user.password_key is not None
    return password_of(secret, user.password_key.key)


def _listener(cluster: Cluster, user: User, name: str | None) -> ListenerStatus:
    """Where the User connects: by default the first listener that takes its kind of credential.

    The status has external listeners first.
    """
    from ..resources.user_client import addresses_of, listeners_for

    found = addresses_of(cluster)
    if not found:
        raise ValueError(
            f"Cluster {cluster.name} has no address yet: wait until it is Ready, or give --address"
        )
    if name is not None:
        if name not in found:
            raise ValueError(f"--listener: Cluster {cluster.name} has no {name}: it has {', '.join(found)}")
        return found[name]
    suitable = listeners_for(cluster, user)
    if user.has_certificate and not suitable:
        raise ValueError(
            f"Cluster {cluster.name} has no listener with authentication: {{type: Tls}}, where a certificate"
            " logs in: add one, or name another in --listener"
        )
    return suitable[0] if suitable else next(iter(found.values()))


def _trusted(kube: Kube, cluster: Cluster, where: ListenerStatus) -> str:
    """The authorities of a listener with TLS; "" without TLS."""
    from ..resources.certificates import CA
    from ..resources.owned import values_of

    if where.ca_secret is None:
        return ""
    values = values_of(kube.get("v1", "Secret", cluster.namespace, where.ca_secret))
    if CA not in values:
        raise ValueError(
            f"there is no Secret {where.ca_secret} with key {CA} in namespace {cluster.namespace} yet: see the"
            f" condition CertificatesReady of Cluster {cluster.name}"
        )
    return values[CA].decode()


def _tls(
    user: User, secret: dict[str, Any], trusted: str, authority: str | None, files: Path | None, form: str
) -> ClientTls | None:
    from ..local.secrets import replace_file
    from ..resources.certificates import CA
    from ..resources.client_files import ClientTls
    from ..resources.owned import values_of
    from ..resources.user import CERTIFICATE, KEY

    if not (trusted or authority or user.has_certificate):
        return None
    values = values_of(secret) if user.has_certificate else {}
    if user.has_certificate and not {CERTIFICATE, KEY} <= values.keys():
        raise ValueError(
            f"Secret {user.name} has no user.crt and user.key: delete it, and a certificate is issued again"
        )
    certificate, key = (values.get(name, b"").decode() for name in (CERTIFICATE, KEY))
    if files is None and authority is not None and not certificate:
        return ClientTls(authority, are_files=True)
    if files is None and form == "librdkafka":
        raise ValueError("--format librdkafka: its files have no room for certificates: give --files DIR")
    if files is None:
        trusted = Path(authority).read_text() if authority is not None else trusted
        return ClientTls(trusted, certificate, key)
    files.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = files.absolute()
    if authority is None:
        replace_file(folder / CA, trusted.encode())
        authority = str(folder / CA)
    if not certificate:
        return ClientTls(authority, are_files=True)
    replace_file(folder / CERTIFICATE, certificate.encode())
    replace_file(folder / KEY, (key + certificate).encode())  # Java reads both from here
    return ClientTls(authority, str(folder / CERTIFICATE), str(folder / KEY), are_files=True)
