"""Puts the CRDs of `crds/`, at the top of the repository, into the wheel: the local runtime validates by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Crds(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        crds = Path(self.root).parent / "crds"
        if version == "standard" and crds.is_dir():  # an editable install reads them where they are
            build_data["force_include"][str(crds)] = "millstream_operator/crds"
