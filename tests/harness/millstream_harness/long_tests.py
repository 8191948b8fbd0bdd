"""The long tests: `make test` leaves them out; `make test-all` and CI run every test.

A test is long because of its file's subject, so the rule goes by files. A new file that matches no pattern is in
`make test`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

LONG = {
    "the same asked of Apache Kafka, and compared": (
        "tests/compat/beside/*",
        "tests/compat/test_groups_beside_kafka.py",
        "tests/broker/log/test_log_beside_kafka.py",
        "tests/mirror/test_mirror_into_kafka.py",
        "tests/mirror/test_mirror_kafka.py",
        "tests/mirror/test_mirror_security.py",
    ),
    "brokers flooded, starved, damaged and killed in a loop": ("tests/broker/robustness/*",),
    "clusters broken under load, beyond tests/broker/test_cluster.py": (
        "tests/faults/test_faults.py",
        "tests/broker/replication/test_cluster_replication.py",
        "tests/broker/test_cluster_copies.py",
        "tests/broker/test_cluster_killed.py",
        "tests/broker/test_cluster_members.py",
        "tests/broker/test_zookeeper_failures.py",
        "tests/broker/test_zookeeper_session.py",
        "tests/broker/groups/test_group_topic_ids.py",
        "tests/broker/log/test_log_identity.py",
        "tests/broker/replication/test_rack_aware_reads.py",
        "tests/client/test_leaderless.py",
    ),
    "streams whose members, brokers and ZooKeeper come and go": (
        "tests/client/test_documentation.py",
        "tests/client/test_exactly_once_example.py",
        "tests/client/streams/test_stream_interrupts.py",
        "tests/client/streams/test_stream_messages.py",
        "tests/client/streams/test_stream_problems.py",
        "tests/client/test_stream*.py",
        "tests/client/test_zookeeper_streams.py",
    ),
    "ports that do not answer, waited for": ("tests/client/test_doctor*.py",),
    "mirrors broken under load, beyond tests/mirror/test_mirror_flow.py": (
        "tests/faults/test_mirror_rounds.py",
        "tests/mirror/test_mirror_compacted.py",
        "tests/mirror/test_mirror_faults.py",
        "tests/operator/test_local_identity_mirror.py",
        "tests/operator/test_local_promotion.py",
        "tests/mirror/test_mirror_links.py",
        "tests/mirror/test_mirror_loops.py",
        "tests/mirror/test_mirror_peers.py",
        "tests/mirror/test_mirror_problems.py",
        "tests/mirror/test_mirror_promotion.py",
        "tests/mirror/test_mirror_racks.py",
        "tests/mirror/test_mirror_source_loss.py",
        "tests/mirror/test_mirror_status_command.py",
        "tests/mirror/test_mirror_target_loss.py",
        "tests/mirror/test_mirror_throttle.py",
        "tests/mirror/test_mirror_unclean.py",
        "tests/mirror/test_mirror_waiting.py",
        "tests/mirror/test_mirror_identity_faults.py",
        "tests/mirror/test_mirror_rejoin.py",
        "tests/mirror/test_mirror_rejoin_refused.py",
        "tests/mirror/test_mirror_rejoin_faults.py",
    ),
    "thousands of steps through a model": (
        "tests/broker/controller/test_controller_simulation.py",
        "tests/broker/log/test_log_lives_model.py",
        "tests/operator/test_load_machine.py",
    ),
    "alerts in a real Prometheus": ("tests/monitoring/test_alerts.py",),
    "consumers as processes, scaled at the operator's pace": ("tests/operator/test_local_workloads.py",),
    "thousands of topics or partitions": (
        "tests/mirror/test_mirror_many.py",
        "tests/operator/test_api_scale.py",
        "tests/operator/test_group_requests.py",
        "tests/broker/test_cluster_controller.py",
    ),
    "Kafka's own tools, each call a JVM": (
        "tests/compat/test_kafka_tools.py",
        "tests/compat/test_cluster_tools.py",
        "tests/compat/test_command_and_tools.py",
        "tests/compat/test_mirrormaker2.py",
        "tests/broker/log/test_log_kafka_tools.py",
    ),
    "Spark started again and again": (
        "tests/jobs/test_load_command.py",
        "tests/faults/test_load_faults.py",
        "tests/jobs/test_jobs_s3.py",
        "tests/jobs/test_load_s3.py",
        "tests/jobs/test_publish_killed.py",
        "tests/jobs/test_stream_killed.py",
        "tests/operator/test_local_loads.py",
        "tests/compat/test_spark_source.py",
    ),
    "a job of Spark in each format and case; tests/jobs/test_load_table.py has a load": (
        "tests/jobs/test_audit.py",
        "tests/jobs/test_catalogs.py",
        "tests/jobs/test_compact.py",
        "tests/jobs/test_creation.py",
        "tests/jobs/test_outputs.py",
        "tests/jobs/test_protobuf.py",
        "tests/jobs/test_publish.py",
        "tests/jobs/test_repeats.py",
        "tests/jobs/test_rewind.py",
        "tests/jobs/test_stream.py",
        "tests/jobs/test_topic_identity.py",
        "tests/jobs/test_value_formats.py",
    ),
    "other implementations of the protocol, message by message": (
        "tests/compat/test_client_java.py",
        "tests/compat/test_codec_oracles.py",
    ),
    "programs in Go and JavaScript, fetched and built first": (
        "tests/compat/test_client_franz_go.py",
        "tests/compat/test_client_kafkajs.py",
        "tests/test_actionlint.py",
    ),
    "the whole site, built, and pages run as a reader runs them": (
        "tests/test_site.py",
        "tests/examples/test_demo.py",
        "tests/examples/test_failover_demo.py",
        "tests/examples/test_pages.py",
    ),
}
"""Patterns of files, from the repository's root, by the reason for their length; * matches folders, too."""


def is_long(path: str) -> bool:
    """Whether the file's tests are long; the path is relative to the repository's root."""
    return any(fnmatchcase(path, pattern) for patterns in LONG.values() for pattern in patterns)
