"""Secrets of resources as files that only the user can read: the counterpart of Kubernetes' Secrets.

DATA/users/SECRET/KEY         a value, such as password and sasl.jaas.config; ca.crt and broker-N.pem
DATA/users/SECRET/.secret     the rest of the Secret: its owner, and a version that changes with its values
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from .clusters import folder_name
from .secrets import Values, replace_file

Manifest = dict[str, Any]
REST: Final = ".secret"
"""No key has this name, as keys of Secrets would."""


class UserSecrets:
    """The Secrets in a folder, and those of manifests, which replace the files of their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, namespace: str, name: str) -> Manifest | None:
        where = self._where(namespace, name)
        try:
            rest: Manifest = msgspec.json.decode((where / REST).read_bytes())
        except FileNotFoundError:
            return None
        values = {
            file.name: base64.b64encode(file.read_bytes()).decode()
            for file in where.iterdir()
            if not file.name.startswith(".")
        }
        return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", **rest, "data": values}

    def put(self, manifest: Mapping[str, Any]) -> Manifest:
        """Store a Secret as an API server does: with a uid once, and a new version."""
        metadata = manifest["metadata"]
        before = self.get(metadata["namespace"], metadata["name"])
        identity = str(uuid.uuid4()) if before is None else before["metadata"]["uid"]
        values = {key: base64.b64decode(value) for key, value in manifest["data"].items()}
        self._write({**metadata, "uid": identity}, values)
        found = self.get(metadata["namespace"], metadata["name"])
        assert found is not None
        return found

    def take(self, namespace: str, name: str, values: Values) -> None:
        """Store the Secret of a manifest, which has no owner; nothing changes if it has these values."""
        before = self.get(namespace, name)
        encoded = {key: base64.b64encode(value).decode() for key, value in values.items()}
        if before is not None and before["data"] == encoded:
            return
        identity = str(uuid.uuid4()) if before is None else before["metadata"]["uid"]
        self._write({"namespace": namespace, "name": name, "uid": identity}, values)

    def collect(self, owner: str) -> None:
        """Delete the Secrets of a deleted resource, which has this uid, as Kubernetes' garbage collector does."""
        for rest in self.folder.glob(f"*/{REST}"):
            metadata = msgspec.json.decode(rest.read_bytes())["metadata"]
            if any(reference.get("uid") == owner for reference in metadata.get("ownerReferences", ())):
                shutil.rmtree(rest.parent)

    def _write(self, metadata: Mapping[str, Any], values: Values) -> None:
        where = self._where(metadata["namespace"], metadata["name"])
        for folder in (self.folder, where):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        for file in where.iterdir():
            if not file.name.startswith(".") and file.name not in values:
                file.unlink()
        for key, value in values.items():
            replace_file(where / key, value)
        rest = {"metadata": {**metadata, "resourceVersion": uuid.uuid4().hex}}
        replace_file(where / REST, msgspec.json.encode(rest))  # last: its version is that of the values

    def path(self, namespace: str, name: str, key: str) -> Path:
        """The file of a value."""
        return self._where(namespace, name) / key

    def _where(self, namespace: str, name: str) -> Path:
        return self.folder / folder_name(namespace, name)
