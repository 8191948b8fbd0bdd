"""The Lua script of docs/how-to/gitops.md, as Argo CD runs it: with the resource as ``obj``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lupa
import pytest
import yaml

from millstream_operator.models import KINDS
from millstream_operator.models.conditions import Reason

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/gitops.md"
UNSEEN = "the operator has not seen this version yet"


@pytest.fixture(scope="module")
def script() -> str:
    (text,) = re.findall(r"```yaml\n(# in the ConfigMap argocd-cm\n.*?)```", PAGE.read_text(), re.DOTALL)
    ((key, found),) = yaml.safe_load(text).items()
    assert key.removeprefix("resource.customizations.health.millstream.dev_") in KINDS
    return str(found)


def condition(kind: str, status: str, reason: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": f"because of {kind}"}


def health(script: str, status: dict[str, Any] | None, generation: int = 2) -> tuple[str, str]:
    lua = lupa.LuaRuntime()
    found: dict[str, Any] = {"metadata": {"name": "flights", "generation": generation}}
    if status is not None:
        found["status"] = {"observedGeneration": 2, **status}
    lua.globals().obj = lua.table_from(found, recursive=True)
    result = lua.execute(script)
    return result["status"], result["message"]


READY = condition("Ready", "True", "TopicReady")


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], ("Progressing", UNSEEN)),
        ([READY], ("Healthy", "TopicReady: because of Ready")),
        (
            [READY, condition("Paused", "True", "ReconcilePaused")],
            ("Healthy", "TopicReady: because of Ready"),
        ),
        (
            [condition("Ready", "False", "ClusterNotReady")],
            ("Progressing", "ClusterNotReady: because of Ready"),
        ),
        (
            [condition("Ready", "False", "Promoting"), condition("Promoted", "False", "Promoting")],
            ("Progressing", "Promoting: because of Ready"),
        ),
        (
            [condition("Ready", "False", "ClusterNotFound")],
            ("Degraded", "ClusterNotFound: because of Ready"),
        ),
        (
            [condition("Rebalancing", "True", "Reassigning"), READY],
            ("Progressing", "Reassigning: because of Rebalancing"),
        ),
        (
            [READY, condition("Upgrading", "False", "OutsideMaintenanceWindow")],
            ("Healthy", "TopicReady: because of Ready"),
        ),
        (
            [condition("RollingUpdate", "True", "Restarting"), condition("Ready", "False", "BrokerFailed")],
            ("Degraded", "BrokerFailed: because of Ready"),
        ),
    ],
)
def test_the_health_of_a_resource(
    script: str, conditions: list[dict[str, str]], expected: tuple[str, str]
) -> None:
    assert health(script, {"conditions": conditions}) == expected


def test_a_version_that_the_operator_has_not_seen(script: str) -> None:
    assert health(script, None) == ("Progressing", UNSEEN)
    assert health(script, {"conditions": [READY]}, generation=3) == ("Progressing", UNSEEN)
    assert health(script, {}) == ("Progressing", UNSEEN)


def test_it_names_reasons_that_exist(script: str) -> None:
    (names,) = re.findall(r"not_yet = {(.*?)}", script, re.DOTALL)
    assert set(re.findall(r"(\w+) = true", names)) <= {reason.value for reason in Reason}
