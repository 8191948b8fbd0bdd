"""Checks the configuration of Clusters and Topics with the broker that will get it, before anything changes.

Only `millstream-broker --check` knows Kafka's keys; see the broker's `check`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping

from ..resources.broker_config import RESERVED_CONFIG
from .clusters import command
from .state import Resource

TIMEOUT_S = 30.0
_KINDS = {"Cluster": "brokers", "Topic": "topics"}


def problems(resources: Mapping[str, Resource]) -> dict[str, list[str]]:
    """Problems with the configuration of each resource, by its key; resources without problems are left out."""
    asked: dict[str, dict[str, dict[str, str]]] = {"brokers": {}, "topics": {}}
    found: dict[str, list[str]] = {}
    for key, resource in resources.items():
        config = resource["spec"].get("config") or {}
        if resource["kind"] not in _KINDS or not config:
            continue
        if resource["kind"] == "Cluster" and (reserved := sorted(RESERVED_CONFIG.intersection(config))):
            found[key] = [f"{name}: not allowed: the runtime decides this key" for name in reserved]
            config = {name: value for name, value in config.items() if name not in RESERVED_CONFIG}
        asked[_KINDS[resource["kind"]]][key] = config
    if any(asked.values()):
        for answers in _ask(asked).values():
            for key, wrongs in answers.items():
                if wrongs:
                    found.setdefault(key, []).extend(wrongs)
    return found


def _ask(asked: Mapping[str, object]) -> dict[str, dict[str, list[str]]]:
    try:
        done = subprocess.run(
            [command("millstream-broker"), "--check"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}  # the broker's start will report the problem
    answer: dict[str, dict[str, list[str]]] = json.loads(done.stdout)
    return answer
