"""What an e2e run would delete of others is found before it deletes anything."""

from __future__ import annotations

import pytest

from millstream_harness.chart import endangered
from millstream_harness.kube import OF_TESTS, Namespace, run

pytestmark = pytest.mark.process


def test_resources_outside_the_tests_namespaces_are_endangered(namespace: Namespace) -> None:
    namespace.apply(
        {
            "apiVersion": "millstream.dev/v1alpha1",
            "kind": "Topic",
            "metadata": {"name": "orders"},
            "spec": {"clusterRef": {"name": "shop"}},
        }
    )
    ours = f"Topic {namespace.name}/orders"
    assert ours not in endangered()
    run("kubectl", "label", "namespace", namespace.name, f"{OF_TESTS}-")
    assert ours in endangered()
