"""Every metric of a broker: docs/metrics.md is this table."""

from __future__ import annotations

from millstream_process.metrics import Metric

MOST_TOPICS = 1000
"""Largest number of series by topic of one metric; further topics are added up."""
MOST_PARTITIONS = 10_000
"""Largest number of series by partition of one metric; others are left out, and counted."""
PER_TOPIC = f"; beyond {MOST_TOPICS} topics the rest counts as (others)"
PER_PARTITION = f"; at most {MOST_PARTITIONS}, the first by name"
MOST_CLIENTS = 1000
"""Largest number of series of one quota; others are left out, and counted."""
LONGEST_LABEL = 200
"""Characters of a name that a client chooses."""
PER_CLIENT = f"; at most {MOST_CLIENTS} clients that have a quota, those throttled longest first"
QUOTA_LABELS = ("quota", "user", "client_id")

TABLE = (
    Metric("millstream_broker_info", "gauge", "1", "The broker's version.", ("version",)),
    # Requests and clients
    Metric(
        "millstream_request_seconds",
        "histogram",
        "seconds",
        "Time from a request's last byte to its answer; long polls of Fetch and rebalances wait in it.",
        ("api",),
    ),
    Metric("millstream_received_bytes_total", "counter", "bytes", "Bytes received from clients."),
    Metric("millstream_sent_bytes_total", "counter", "bytes", "Bytes sent to clients."),
    Metric("millstream_connections", "gauge", "connections", "Connections that are open."),
    Metric(
        "millstream_tasks",
        "gauge",
        "tasks",
        "Tasks of the event loop: those of the broker itself, and requests that wait.",
    ),
    Metric("millstream_connections_accepted_total", "counter", "connections", "Connections accepted."),
    Metric(
        "millstream_request_memory_bytes",
        "gauge",
        "bytes",
        "Requests held in memory until they are whole or admitted; bounded by queued.max.request.bytes.",
    ),
    # Logins and rights
    Metric(
        "millstream_logins_total",
        "counter",
        "logins",
        "Clients and brokers that authenticated; SSL: by a certificate alone.",
        ("mechanism",),
    ),
    Metric(
        "millstream_login_failures_total",
        "counter",
        "logins",
        "Failed logins: `credentials` were wrong, or not verified after `too_many_failures`; the `mechanism` is not"
        " enabled; `protocol`: no login at all; `changed`: another user or mechanism than before.",
        ("mechanism", "reason"),
    ),
    Metric(
        "millstream_logins_delayed_total",
        "counter",
        "logins",
        "Logins that waited before they were verified, because of earlier failures.",
    ),
    Metric(
        "millstream_denied_operations_total",
        "counter",
        "operations",
        "Operations on a resource that clients requested and may not do.",
        ("api",),
    ),
    Metric(
        "millstream_audit_suppressed_total",
        "counter",
        "events",
        "Events without a line in the audit log, beyond audit.log.max.per.second; lines there count them.",
        ("kind",),
    ),
    Metric(
        "millstream_audit_lost_total",
        "counter",
        "lines",
        "Lines of the audit log that could not be written, or not as fast as they came.",
    ),
    # Quotas
    Metric(
        "millstream_quota_limit",
        "gauge",
        "1",
        f"A client's quota, in the unit of its key, if it has used the broker within the last hour{PER_CLIENT}.",
        QUOTA_LABELS,
    ),
    Metric(
        "millstream_quota_rate",
        "gauge",
        "1",
        f"What the client has used, a second, in the same unit; not for controller_mutation_rate{PER_CLIENT}.",
        QUOTA_LABELS,
    ),
    Metric(
        "millstream_quota_throttled_requests_total",
        "counter",
        "requests",
        f"Requests of the client that were throttled by the quota{PER_CLIENT}.",
        QUOTA_LABELS,
    ),
    Metric(
        "millstream_quota_throttle_seconds_total",
        "counter",
        "seconds",
        f"The sum of their throttle times{PER_CLIENT}.",
        QUOTA_LABELS,
    ),
    Metric(
        "millstream_connections_throttled_total",
        "counter",
        "connections",
        "Connections that were closed because of the quota of their address.",
    ),
    Metric(
        "millstream_connection_lines_suppressed_total",
        "counter",
        "lines",
        "Log lines about connections that were left out, because there were too many of that `cause`: `limit` of"
        " connections, `tls` handshake, `login`, `request`, `failure` of the broker.",
        ("cause",),
    ),
    Metric(
        "millstream_tls_handshakes_total", "counter", "handshakes", "TLS handshakes that clients completed."
    ),
    Metric(
        "millstream_tls_handshake_failures_total",
        "counter",
        "handshakes",
        "TLS handshakes that failed, took too long or never began, clients without TLS included.",
    ),
    Metric(
        "millstream_tls_certificate_expiry_days",
        "gauge",
        "days",
        "Time until a listener's certificate, or that of an issuer in its file, expires; negative after that.",
        ("listener",),
    ),
    Metric(
        "millstream_tls_certificate_reloads_total",
        "counter",
        "certificates",
        "New certificates of a listener that were taken while the broker ran.",
        ("listener",),
    ),
    Metric(
        "millstream_tls_certificates_refused_total",
        "counter",
        "certificates",
        "New certificates of a listener that were refused: the old one stays, and the log says why.",
        ("listener",),
    ),
    Metric(
        "millstream_muted_connections",
        "gauge",
        "connections",
        "Connections that are not read at the moment, because of a quota.",
    ),
    # Records
    Metric(
        "millstream_records_received_total", "counter", "records", "Records that Produce appended to logs."
    ),
    Metric(
        "millstream_batches_refused_total",
        "counter",
        "batches",
        "Partitions of Produce requests that were refused.",
    ),
    Metric(
        "millstream_topic_received_bytes_total",
        "counter",
        "bytes",
        f"Bytes of record batches appended to partitions led here{PER_TOPIC}.",
        ("topic",),
    ),
    Metric(
        "millstream_topic_sent_bytes_total",
        "counter",
        "bytes",
        f"Bytes of record batches read by consumers{PER_TOPIC}.",
        ("topic",),
    ),
    Metric(
        "millstream_topic_replicated_bytes_total",
        "counter",
        "bytes",
        f"Bytes of record batches read by followers{PER_TOPIC}.",
        ("topic",),
    ),
    Metric("millstream_log_bytes", "gauge", "bytes", f"Size of a topic's logs here{PER_TOPIC}.", ("topic",)),
    Metric(
        "millstream_log_end_offset",
        "gauge",
        "offset",
        f"The next offset of a partition, on each of its replicas{PER_PARTITION}.",
        ("topic", "partition"),
    ),
    # Replication
    Metric("millstream_topics", "gauge", "topics", "Topics in the cluster."),
    Metric("millstream_partitions", "gauge", "partitions", "Replicas on this broker."),
    Metric("millstream_leaders", "gauge", "partitions", "Partitions that this broker leads."),
    Metric(
        "millstream_under_replicated_partitions",
        "gauge",
        "partitions",
        "Partitions led here with fewer in-sync replicas than replicas.",
    ),
    Metric(
        "millstream_under_min_isr_partitions",
        "gauge",
        "partitions",
        "Partitions led here with fewer in-sync replicas than min.insync.replicas: acks=all fails.",
    ),
    Metric(
        "millstream_replica_max_lag",
        "gauge",
        "records",
        "Records that the follower furthest behind a leader here still has to fetch.",
    ),
    Metric(
        "millstream_isr_shrinks_total",
        "counter",
        "followers",
        "Followers that left the ISR of a partition led here.",
    ),
    Metric("millstream_isr_expands_total", "counter", "followers", "Followers that joined it."),
    # The cluster
    Metric("millstream_active_controller", "gauge", "0 or 1", "Whether this broker is the controller."),
    Metric(
        "millstream_leaderless_partitions",
        "gauge",
        "partitions",
        "Partitions of the cluster without a leader (controller only).",
    ),
    Metric(
        "millstream_not_preferred_leaders",
        "gauge",
        "partitions",
        "Partitions of the cluster not led by their preferred replica (controller only).",
    ),
    Metric(
        "millstream_offsets_topic_missing_replicas",
        "gauge",
        "replicas",
        "Replicas that partitions of __consumer_offsets lack of offsets.topic.replication.factor (controller only).",
    ),
    Metric(
        "millstream_coordination_connected",
        "gauge",
        "0 or 1",
        "Whether the broker has a session with ZooKeeper; always 1 for a broker by itself.",
    ),
    # Groups
    Metric("millstream_groups", "gauge", "groups", "Groups coordinated here, by their state.", ("state",)),
    Metric("millstream_group_members", "gauge", "members", "Members of the groups coordinated here."),
    Metric(
        "millstream_group_committed_offset",
        "gauge",
        "offset",
        f"The offset that a group has committed, on the broker that coordinates it{PER_PARTITION}.",
        ("group", "topic", "partition"),
    ),
    Metric(
        "millstream_group_partitions_loading",
        "gauge",
        "partitions",
        "Partitions of __consumer_offsets led here whose groups are not loaded yet.",
    ),
    Metric(
        "millstream_group_records_unreadable_total",
        "counter",
        "records",
        "Records of __consumer_offsets that were skipped when groups were loaded.",
    ),
    # Transactions
    Metric(
        "millstream_transactional_ids",
        "gauge",
        "ids",
        "Transactional ids coordinated here, by their state.",
        ("state",),
    ),
    Metric(
        "millstream_oldest_transaction_seconds",
        "gauge",
        "seconds",
        "Age of the oldest transaction coordinated here that has not ended in all its partitions; 0 without one.",
    ),
    Metric(
        "millstream_open_transactions",
        "gauge",
        "transactions",
        "Transactions open in partitions led here, once for each partition.",
    ),
    Metric(
        "millstream_partitions_with_late_transactions",
        "gauge",
        "partitions",
        "Partitions led here whose oldest open transaction got no records for transaction.max.timeout.ms and five"
        " minutes more: nobody will end it, as in Kafka's PartitionsWithLateTransactionsCount.",
    ),
    Metric(
        "millstream_transaction_partitions_loading",
        "gauge",
        "partitions",
        "Partitions of __transaction_state led here whose transactional ids are not loaded yet.",
    ),
    Metric(
        "millstream_transaction_records_unreadable_total",
        "counter",
        "records",
        "Records of __transaction_state that were skipped when transactional ids were loaded.",
    ),
    # Disks
    Metric(
        "millstream_log_directory_online",
        "gauge",
        "0 or 1",
        "Whether a log directory can be used.",
        ("directory",),
    ),
    Metric(
        "millstream_log_directory_bytes",
        "gauge",
        "bytes",
        "Size of the logs in a log directory.",
        ("directory",),
    ),
    Metric(
        "millstream_log_directory_free_bytes",
        "gauge",
        "bytes",
        "Room left in the file system of a log directory.",
        ("directory",),
    ),
    Metric(
        "millstream_log_directory_capacity_bytes",
        "gauge",
        "bytes",
        "Size of the file system of a log directory.",
        ("directory",),
    ),
    Metric(
        "millstream_offline_log_directories", "gauge", "directories", "Log directories that cannot be used."
    ),
    Metric("millstream_offline_partitions", "gauge", "partitions", "Replicas here whose log cannot be used."),
    Metric(
        "millstream_stray_partitions",
        "gauge",
        "partitions",
        "Logs here that fit no topic, although nobody deleted them: kept, and not served.",
    ),
    Metric("millstream_stray_bytes", "gauge", "bytes", "Size of these logs."),
    Metric(
        "millstream_uncleanable_partitions",
        "gauge",
        "partitions",
        "Replicas no longer compacted, because compaction failed on them.",
    ),
    # The process
    Metric(
        "millstream_loop_stall_seconds",
        "histogram",
        "seconds",
        "Time that callbacks waited for the event loop, if a millisecond or longer.",
    ),
    Metric(
        "millstream_loop_stall_cpu_seconds",
        "histogram",
        "seconds",
        "The same in processor time, without the time of other processes.",
    ),
    Metric(
        "millstream_task_failures_total",
        "counter",
        "failures",
        "Background tasks that ended unexpectedly.",
        ("task",),
    ),
    Metric(
        "millstream_series_omitted",
        "gauge",
        "series",
        "Series left out of a metric, because there were too many.",
        ("metric",),
    ),
)
