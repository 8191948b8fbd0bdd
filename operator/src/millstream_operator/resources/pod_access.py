"""How pods of ours connect to a Cluster, and the folder with the files that they need for it; pure.

    username, password, sasl.jaas.config    of the Secret of their user (pod_user.py)
    ca.crt                                  of a copy of the Cluster's authorities, with TLS

The volume follows its Secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from .certificates import CA

Manifest = dict[str, Any]
FOLDER: Final = "/run/millstream/user"
VOLUME: Final = "conf"  # a name that no volume of a user's has
CA_FILE: Final = f"{FOLDER}/{CA}"


@dataclass(frozen=True, slots=True)
class PodAccess:
    """Where they connect, whether as a user of their own, and whether with TLS.

    ``folder`` has the files of their user, and ``ca_file`` the authorities.
    """

    bootstrap: str
    has_login: bool = False
    has_tls: bool = False
    folder: str = FOLDER
    ca_file: str = CA_FILE


def with_files(pod: Manifest, secrets: Sequence[str], *, everywhere: bool = False) -> Manifest:
    """A pod's spec whose first container, or each one, has the files of these Secrets."""
    volume = {"name": VOLUME, "projected": {"sources": [{"secret": {"name": name}} for name in secrets]}}
    mount = {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}
    count = len(pod["containers"]) if everywhere else 1
    having = [
        {**container, "volumeMounts": [*container.get("volumeMounts", ()), mount]}
        for container in pod["containers"][:count]
    ]
    volumes = [*pod.get("volumes", ()), volume]
    return {**pod, "containers": [*having, *pod["containers"][count:]], "volumes": volumes}
