"""The chart's alerts, unit-tested by promtool: each is silent while all is well and fires where it should."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from millstream_broker.observability.metric_table import TABLE as BROKER
from millstream_harness.tools import require
from millstream_mirror.partitions.metrics import TABLE as MIRROR
from millstream_operator.reconcile.mirror.plan import NOT_READY
from millstream_operator.state.metric_table import TABLE as OPERATOR
from millstream_process.metrics import PROCESS

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/observability.md"
RULES = ROOT / "charts/millstream/rules/millstream.yaml"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
RECORDS = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}

POD = 'namespace="ms",cluster="east",pod="east-brokers-0"'
GROUP = 'namespace="ms",cluster="east"'
LINK = 'namespace="ms",mirror="m",source="west"'
NAMED = 'namespace="ms",name="x"'
DAY = "24h"

# For each alert: series while all is well, and those with which it fires; unnamed series stay the same.
# "A+BxN" is N more values, each larger by B.
CASES: dict[str, list[tuple[str, str, str]]] = {
    "MillstreamBrokersMissing": [
        (f"millstream_cluster_brokers{{{NAMED}}}", "3x120", "3x120"),
        (f"millstream_cluster_brokers_ready{{{NAMED}}}", "3x120", "2x120"),
    ],
    "MillstreamPartitionsWithoutLeader": [(f"millstream_leaderless_partitions{{{POD}}}", "0x120", "1x120")],
    "MillstreamNoController": [(f"millstream_active_controller{{{POD}}}", "1x120", "0x120")],
    "MillstreamUnderMinIsr": [(f"millstream_under_min_isr_partitions{{{POD}}}", "0x120", "2x120")],
    "MillstreamUnderReplicated": [(f"millstream_under_replicated_partitions{{{POD}}}", "0x120", "2x120")],
    "MillstreamOffsetsUnderFactor": [
        (f"millstream_offsets_topic_missing_replicas{{{POD}}}", "0x120", "50x120")
    ],
    "MillstreamIsrUnstable": [(f"millstream_isr_shrinks_total{{{POD}}}", "7x120", "0+20x120")],
    "MillstreamZooKeeperUnreachable": [(f"millstream_coordination_connected{{{POD}}}", "1x120", "0x120")],
    "MillstreamLogDirectoryOffline": [(f"millstream_offline_log_directories{{{POD}}}", "0x120", "1x120")],
    "MillstreamStrayLogs": [(f"millstream_stray_partitions{{{POD}}}", "0x120", "3x120")],
    "MillstreamDiskAlmostFull": [
        (f'millstream_log_directory_free_bytes{{{POD},directory="/d"}}', "50x120", "9x120"),
        (f'millstream_log_directory_capacity_bytes{{{POD},directory="/d"}}', "100x120", "100x120"),
    ],
    "MillstreamDiskFullWithinADay": [
        (f'millstream_log_directory_free_bytes{{{POD},directory="/d"}}', "40000x120", "40000-100x120"),
        (f'millstream_log_directory_capacity_bytes{{{POD},directory="/d"}}', "100000x120", "100000x120"),
    ],
    "MillstreamCompactionFailed": [(f"millstream_uncleanable_partitions{{{POD}}}", "0x120", "1x120")],
    "MillstreamProduceSlow": [
        (f'millstream_request_seconds_bucket{{{POD},api="Produce",le="0.5"}}', "0+100x120", "0+90x120"),
        (f'millstream_request_seconds_bucket{{{POD},api="Produce",le="2.5"}}', "0+100x120", "0+100x120"),
        (f'millstream_request_seconds_bucket{{{POD},api="Produce",le="+Inf"}}', "0+100x120", "0+100x120"),
    ],
    "MillstreamProduceRefused": [(f"millstream_batches_refused_total{{{POD}}}", "5x120", "0+120x120")],
    "MillstreamEventLoopHeld": [
        (f'millstream_loop_stall_seconds_bucket{{{POD},le="1.0"}}', "0+10x120", "0+10x120"),
        (f'millstream_loop_stall_seconds_bucket{{{POD},le="+Inf"}}', "0+10x120", "0+12x120"),
    ],
    "MillstreamLoginsFail": [
        (
            f'millstream_login_failures_total{{{POD},mechanism="PLAIN",reason="credentials"}}',
            "0+6x120",
            "0+120x120",
        )
    ],
    "MillstreamRequestsDenied": [
        (f'millstream_denied_operations_total{{{POD},api="Fetch"}}', "0+6x120", "0+120x120")
    ],
    "MillstreamAuditLogLost": [(f"millstream_audit_lost_total{{{POD}}}", "0x120", "0+1x120")],
    "MillstreamCertificateExpires": [
        (f'millstream_tls_certificate_expiry_days{{{POD},listener="SSL"}}', "30x120", "6x120")
    ],
    "MillstreamCertificateRefused": [
        (f'millstream_tls_certificates_refused_total{{{POD},listener="SSL"}}', "1x120", "0+1x120")
    ],
    "MillstreamCertificatesNotReady": [
        (
            f'millstream_operator_attention{{{NAMED},kind="Cluster",type="CertificatesReady",reason="AuthorityInvalid"}}',
            "_x120",
            "1x120",
        )
    ],
    "MillstreamAuthorityReplaced": [
        (
            'millstream_operator_conditions{kind="Cluster",type="CertificatesReady",status="True",reason="AuthorityRetiring"}',
            "_x120",
            "1x120",
        )
    ],
    "MillstreamTaskFails": [
        (f'millstream_task_failures_total{{{POD},task="t"}}', "0x120", "0x100 1x19"),
    ],
    "MillstreamGroupLagging": [
        (
            f'millstream_operator_attention{{{NAMED},kind="ConsumerGroup",type="Lagging",reason="AboveMaxLag"}}',
            "_x120",
            "1x120",
        )
    ],
    "MillstreamGroupStuck": [
        (
            f'millstream_operator_attention{{{NAMED},kind="ConsumerGroup",type="Stuck",reason="NothingCommitted"}}',
            "_x120",
            "1x120",
        )
    ],
    "MillstreamGroupsNotLoaded": [(f"millstream_group_partitions_loading{{{POD}}}", "0x120", "1x120")],
    "MillstreamTransactionHangs": [
        (f"millstream_partitions_with_late_transactions{{{POD}}}", "0x120", "1x120")
    ],
    "MillstreamTransactionsNotLoaded": [
        (f"millstream_transaction_partitions_loading{{{POD}}}", "0x120", "1x120")
    ],
    "MillstreamMirrorSourceUnreachable": [
        (f'millstream_mirror_source_reachable{{{LINK},pod="a"}}', "1x120", "0x120"),
        (f'millstream_mirror_source_reachable{{{LINK},pod="b"}}', "0x120", "0x120"),
    ],
    "MillstreamMirrorTargetUnreachable": [
        (f'millstream_mirror_target_reachable{{{LINK},pod="a"}}', "1x120", "0x120"),
        (f'millstream_mirror_target_reachable{{{LINK},pod="b"}}', "0x120", "0x120"),
    ],
    "MillstreamMirrorDegraded": [
        (
            f'millstream_operator_attention{{{NAMED},kind="MirrorMaker",type="Degraded",reason="Diverged"}}',
            "_x120",
            "1x120",
        ),
        (
            f'millstream_operator_attention{{{NAMED},kind="MirrorMaker",type="Degraded",reason="RecordsMissing"}}',
            "1x120",
            "_x120",
        ),
    ],
    "MillstreamMirrorBehind": [(f"millstream_mirror_lag_seconds{{{LINK}}}", "5x120", "700x120")],
    "MillstreamMirrorRecordsMissing": [  # a worker finds them as it starts
        (f"millstream_mirror_missing_records_total{{{LINK}}}", "0x120", "_x100 5x19")
    ],
    "MillstreamLoadFailed": [
        (f'millstream_load_run_state{{{NAMED},state="Failed"}}', "_x120", "1x120"),
    ],
    "MillstreamLoadLate": [(f"millstream_load_late{{{NAMED}}}", "0x120", "1x120")],
    "MillstreamLoadCorruptRecords": [
        (f"millstream_load_run_corrupt_records{{{NAMED}}}", "0x120", "5x120"),
    ],
    "MillstreamOperatorAbsent": [('millstream_operator_leading{lease="ms/operator"}', "1x120", "0x120")],
    "MillstreamOperatorStuck": [("millstream_operator_queue_oldest_seconds", "1x120", "130x120")],
    "MillstreamReconcileFails": [
        ('millstream_operator_errors_total{kind="Topic",error="KubeError"}', "1x120", "0+1x120")
    ],
    "MillstreamApiServerRefuses": [
        (
            'millstream_operator_api_requests_total{method="PATCH",resource="pods",code="403"}',
            "1x120",
            "0+6x120",
        ),
        (
            'millstream_operator_api_requests_total{method="PATCH",resource="pods",code="409"}',
            "0+60x120",
            "0+60x120",
        ),
    ],
    "MillstreamResourceNotReady": [
        (
            f'millstream_operator_attention{{{NAMED},kind="Topic",type="Ready",reason="InvalidTopic"}}',
            "_x120",
            "1x120",
        )
    ],
}


def case(alert: str, *, fires: bool) -> dict[str, Any]:
    """Two hours of the alert's series, with a value a minute; whether it fires at their end."""
    series = [{"series": name, "values": bad if fires else good} for name, good, bad in CASES[alert]]
    if alert != "MillstreamOperatorAbsent":
        series.append({"series": "millstream_operator_leading", "values": "1x120"})
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": firing,
                "eval_time": "119m",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            },
            {
                "expr": f'count(ALERTS{{alertname!="{alert}",alertstate="firing"}})',
                "eval_time": "119m",
                "exp_samples": [],
            },
        ],
    }


def run_promtool(*arguments: str) -> None:
    done = subprocess.run([require("promtool"), *arguments], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_rules() -> None:
    run_promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


def test_promtool_takes_the_configuration_of_the_page(tmp_path: Path) -> None:
    """With other targets, because Debian builds Prometheus without the discovery of pods."""
    (found,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", PAGE.read_text(), re.DOTALL)
    config = yaml.safe_load(found)
    for job in config["scrape_configs"]:
        assert [one["role"] for one in job.pop("kubernetes_sd_configs")] == ["pod"]
        job["static_configs"] = [{"targets": ["localhost:9404"]}]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    run_promtool("check", "config", "--lint=all", "--lint-fatal", str(tmp_path / "prometheus.yaml"))


def test_each_alert_fires_where_it_should_and_only_there(tmp_path: Path) -> None:
    assert CASES.keys() == ALERTS.keys()
    tests = [case(alert, fires=fires) for alert in CASES for fires in (False, True)]
    path = tmp_path / "alerts.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    run_promtool("test", "rules", str(path))


def test_pods_that_two_releases_scrape_count_once(tmp_path: Path) -> None:
    """Each release has a PodMonitor, and so a job, for the same pods."""
    scraped = [
        alert for alert, series in CASES.items() if any(label in series[0][0] for label in (POD, LINK))
    ]
    assert len(scraped) > 15
    tests = []
    for alert in scraped:
        for fires in (False, True):
            test = case(alert, fires=fires)
            test["input_series"] = [
                {**one, "series": one["series"].replace("{", f'{{job="{job}",')}
                for one in test["input_series"]
                for job in ("one", "two")
            ]
            tests.append(test)
        if alert in (
            "MillstreamPartitionsWithoutLeader",
            "MillstreamUnderMinIsr",
            "MillstreamUnderReplicated",
        ):
            value = int(CASES[alert][0][2].partition("x")[0])
            query = {"expr": f"max({ALERTS[alert]['expr']})", "eval_time": "119m"}
            test["promql_expr_test"].append({**query, "exp_samples": [{"labels": "{}", "value": value}]})
    path = tmp_path / "twice.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    run_promtool("test", "rules", str(path))


def test_each_release_misses_its_own_operator(tmp_path: Path) -> None:
    """Two releases in one Prometheus, with the chart's rules for each: the operator of the second one stops."""

    def rules(release: str, namespace: str) -> str:
        chart = ["template", release, str(ROOT / "charts/millstream"), "-n", namespace]
        chart += ["--kube-version", "1.34", "--api-versions", "monitoring.coreos.com/v1/PrometheusRule"]
        done = subprocess.run(
            [require("helm"), *chart], capture_output=True, text=True, check=True, timeout=240
        )
        found = [one for one in yaml.safe_load_all(done.stdout) if one and one["kind"] == "PrometheusRule"]
        path = tmp_path / f"{release}.yaml"
        path.write_text(yaml.safe_dump(found[0]["spec"]))
        return str(path)

    leading = "millstream_operator_leading"
    there, gone = "one/millstream-operator", "two/east-millstream-operator"
    firing = f'ALERTS{{alertname="MillstreamOperatorAbsent",alertstate="firing",lease="{gone}",severity="critical"}}'
    test = {
        "interval": "1m",
        "input_series": [
            {"series": f'{leading}{{lease="{there}",pod="a"}}', "values": "1x120"},
            {"series": f'{leading}{{lease="{there}",pod="b"}}', "values": "0x120"},
            {"series": f'{leading}{{lease="{gone}",pod="c"}}', "values": "1x60"},
        ],
        "promql_expr_test": [
            {"expr": 'ALERTS{alertname="MillstreamOperatorAbsent"}', "eval_time": "59m", "exp_samples": []},
            {
                "expr": 'ALERTS{alertname="MillstreamOperatorAbsent"}',
                "eval_time": "119m",
                "exp_samples": [{"labels": firing, "value": 1}],
            },
        ],
    }
    files = [rules("millstream", "one"), rules("east", "two")]
    path = tmp_path / "absent.yaml"
    path.write_text(yaml.safe_dump({"rule_files": files, "evaluation_interval": "1m", "tests": [test]}))
    run_promtool("test", "rules", str(path))


def test_the_lag_of_a_group_is_what_its_partitions_have_left(tmp_path: Path) -> None:
    where = f'{GROUP},topic="flights"'
    series = {
        f'millstream_log_end_offset{{{where},partition="0",pod="a"}}': "10",  # the leader
        f'millstream_log_end_offset{{{where},partition="0",pod="b"}}': "8",
        f'millstream_log_end_offset{{{where},partition="1",pod="b"}}': "5",
        f'millstream_group_committed_offset{{{where},group="g",partition="0",pod="a"}}': "7",
        f'millstream_group_committed_offset{{{where},group="g",partition="1",pod="a"}}': "6",  # newer than the end
    }
    lag = {"labels": f'millstream:group_lag_records{{{where},group="g"}}', "value": 3}
    check = {"expr": "millstream:group_lag_records", "eval_time": "0m", "exp_samples": [lag]}
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": value} for name, value in series.items()],
        "promql_expr_test": [check],
    }
    path = tmp_path / "lag.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))
    run_promtool("test", "rules", str(path))


def test_a_mirror_that_does_not_mirror_everything_raises_an_alert_whatever_the_reason() -> None:
    (named,) = re.findall(r'reason=~"([^"]+)"', ALERTS["MillstreamMirrorDegraded"]["expr"])
    assert sorted(named.split("|")) == sorted(NOT_READY)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_says_what_to_do_and_has_a_section(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert anchor == alert.lower()
    assert f"\n## {alert}\n" in (ROOT / page).read_text()


def test_the_runbooks_have_no_section_without_an_alert() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE)
    assert sections == list(ALERTS)


def test_the_dashboard_of_mirrors_shows_what_is_not_mirrored() -> None:
    (path,) = (ROOT / "charts/millstream/dashboards").glob("*-mirrors.json")
    queries = [
        target["expr"] for panel in json.loads(path.read_text())["panels"] for target in panel["targets"]
    ]
    for name in ("lag_records", "missing_records_total", "failures_total", "waiting_partitions"):
        assert any(f"(millstream_mirror_{name}{{" in query for query in queries), name


def test_seconds_that_are_added_up_are_shown_as_seconds() -> None:
    """Their rate is no number of operations, and above 1 if several wait at a time."""
    found = [
        panel
        for path in (ROOT / "charts/millstream/dashboards").glob("*.json")
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
        if re.search(r"rate\(millstream_\w+_seconds_total\b", target["expr"])
    ]
    assert found
    for panel in found:
        assert panel["fieldConfig"]["defaults"]["unit"] == "s", panel["title"]
        assert "share" not in panel["description"].lower(), panel["title"]


def test_rules_and_dashboards_name_metrics_that_there_are() -> None:
    known = {one.name for one in (*BROKER, *MIRROR, *PROCESS, *OPERATOR)} | RECORDS
    for path in (RULES, *(ROOT / "charts/millstream/dashboards").glob("*.json")):
        for name in re.findall(r"\b(?:millstream|process)[_:][a-z_:0-9]+\b(?![.-])", path.read_text()):
            if name.endswith("_bucket") or (name.endswith("_count") and name not in known):
                name = name.removesuffix("_bucket").removesuffix("_count")
            assert name in known, f"{path.name}: {name}"
