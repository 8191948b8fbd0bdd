"""Why a pod is not ready, from the status of its containers."""

from __future__ import annotations

from typing import Any

import pytest

from millstream_operator.reconcile.common.pods import Trouble, trouble_of

BEGINNING = {"ready": False, "state": {"waiting": {"reason": "PodInitializing"}}}


def trouble(**status: Any) -> Trouble | None:
    return trouble_of({"metadata": {"name": "east-brokers-0"}, "status": status})


@pytest.mark.parametrize("containers", ["containerStatuses", "initContainerStatuses"])
@pytest.mark.parametrize(
    ("state", "words", "ended"),
    [
        ({"waiting": {"reason": "ErrImagePull"}}, "ErrImagePull", False),
        (
            {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
            "ImagePullBackOff: no such image",
            False,
        ),
        ({"terminated": {"exitCode": 1, "message": "log\nchown: no"}}, "chown: no", True),
        ({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "exit status 137, OOMKilled", True),
    ],
)
def test_a_container_that_holds_its_pod_up(
    state: dict[str, Any], words: str, ended: bool, containers: str
) -> None:
    statuses = {"containerStatuses": [BEGINNING], containers: [{"ready": False, "state": state}]}
    assert trouble(**statuses) == Trouble(f"east-brokers-0: {words}", ended)


def test_a_pod_that_is_well_or_has_only_begun() -> None:
    done = {"ready": True, "state": {"terminated": {"exitCode": 0}}}
    assert trouble() is None
    assert trouble_of({"metadata": {"name": "x"}}) is None
    assert trouble(initContainerStatuses=[done], containerStatuses=[BEGINNING]) is None
    assert trouble(containerStatuses=[{"ready": True, "lastState": {"terminated": {"exitCode": 1}}}]) is None
