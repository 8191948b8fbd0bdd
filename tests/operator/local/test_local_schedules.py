"""Schedules of loads on a laptop: they are checked before their first run, and a schedule that does not run shows."""

from __future__ import annotations

import os
import signal

import pytest

from millstream_harness.local import Sandbox
from millstream_operator.local.processes import wait_for
from millstream_operator.local.reconcile import SCHEDULE
from millstream_operator.local.runtime import LocalRuntime, Reporter
from millstream_operator.local.state import Store

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

LOAD = (
    "{{clusterRef: {{name: west}}, topics: [{topic}], value: {{format: JSON, schema: '{schema}'}},"
    " schedule: {{cron: '0 0 1 1 *'}}, output: {{path: /lake/orders, partitionBy: [{by}]}}}}"
)


def scheduled(sandbox: Sandbox, topic: str = "orders", schema: str = "n BIGINT", by: str = "date") -> None:
    sandbox.write("BatchLoad", "daily", LOAD.format(topic=topic, schema=schema, by=by))


def schedule_pid(sandbox: Sandbox) -> int:
    daemon = Store(sandbox.data).load().daemons.get(SCHEDULE)
    return daemon.pid if daemon is not None and daemon.serves else 0


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, BrokenPipeError])
def test_an_interrupted_up_leaves_the_schedule_running(
    sandbox: Sandbox, interruption: type[BaseException]
) -> None:
    sandbox.cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}}")
    scheduled(sandbox)
    assert sandbox.runtime().up(sandbox.manifests).failures == {}
    before = schedule_pid(sandbox)

    def interrupted(line: str) -> None:
        if line.startswith("Topic orders"):
            raise interruption

    with pytest.raises(interruption):
        LocalRuntime(sandbox.data, Reporter(say=interrupted)).up(sandbox.manifests)
    assert schedule_pid(sandbox) not in (0, before)
    assert sandbox.ready("BatchLoad", "daily")[0] == "True"


def test_a_schedule_that_does_not_run_is_late_and_not_ready(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}}")
    scheduled(sandbox)
    sandbox.runtime().up(sandbox.manifests)
    os.kill(pid := schedule_pid(sandbox), signal.SIGKILL)
    assert wait_for(lambda: not schedule_pid(sandbox), 30), f"process {pid} has ended"
    conditions = {one["type"]: one for one in sandbox.found("BatchLoad", "daily")["status"]["conditions"]}
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "RunLate")
    assert (conditions["Late"]["status"], conditions["Late"]["reason"]) == ("True", "RunLate")
    assert "run `millstream local up` again" in conditions["Late"]["message"]
    sandbox.runtime().up(sandbox.manifests)
    assert sandbox.ready("BatchLoad", "daily")[0] == "True"


def test_a_scheduled_load_is_checked_before_its_first_run(sandbox: Sandbox) -> None:
    sandbox.cluster()
    sandbox.write("Topic", "orders", "{clusterRef: {name: west}}")
    for wrong, reason, words in (
        ({"topic": "ordres"}, "TopicNotFound", "spec.topics: there is no topic ordres"),
        ({"schema": "n BIGNIT"}, "InvalidSpec", "spec.value.schema: column n: BIGNIT is no type"),
        ({"by": "carrier"}, "InvalidSpec", 'spec.output.partitionBy[0]: "carrier" is not allowed'),
    ):
        scheduled(sandbox, **wrong)
        ended = sandbox.run("up", "-f", str(sandbox.manifests))
        assert ended.returncode == 1
        assert words in ended.stdout
        ready = sandbox.ready("BatchLoad", "daily")
        assert ready[:2] == ("False", reason)
    scheduled(sandbox)
    assert sandbox.run("up", "-f", str(sandbox.manifests)).returncode == 0
