"""Writes docs/reference/conditions.md: every condition and every reason, with meaning and remedy.

make docs/reference/conditions.md
"""

from __future__ import annotations

import sys
from typing import Final

from millstream_operator.models.conditions import ConditionType, Reason

T, R = ConditionType, Reason
TYPES: Final[dict[ConditionType, tuple[str, str]]] = {
    T.READY: ("every kind", "The resource works as its spec says."),
    T.ROLLING_UPDATE: ("Cluster", "Brokers or ZooKeeper servers restart, one after the other."),
    T.UPGRADING: ("Cluster", "The Cluster moves to the images of the operator's version."),
    T.REBALANCING: ("Cluster, Topic", "Replicas move between brokers."),
    T.PAUSED: ("every kind", "The operator leaves the resource alone."),
    T.WARNING: ("Cluster, Topic, User, BatchLoad", "It works, but something needs your attention."),
    T.STRAYS: ("Cluster", "Brokers keep logs that fit no topic, and that nobody deleted."),
    T.CERTIFICATES_READY: (
        "Cluster",
        "Brokers serve valid certificates on their listeners with TLS. The reason shows the steps in which an authority is replaced.",
    ),
    T.OPEN_LISTENERS: (
        "Cluster",
        "Listeners are open, and the spec does not state that they are meant to be.",
    ),
    T.LAGGING: ("ConsumerGroup", "The group's lag is above `maxLag`."),
    T.STUCK: ("ConsumerGroup", "The lag grows, and the group commits nothing."),
    T.RESET: ("ConsumerGroup", "The last requested reset was carried out."),
    T.WORKLOAD_READY: ("ConsumerGroup", "The consumers that the resource runs are ready."),
    T.CAUGHT_UP: (
        "MirrorMaker",
        "The target is at most ten seconds behind the sources, without refused topics.",
    ),
    T.SOURCE_REACHABLE: ("MirrorMaker", "Workers reach every source."),
    T.DEGRADED: ("MirrorMaker", "Records or topics are missing in the target."),
    T.PROMOTED: ("MirrorMaker", "All topics that `promote` requests are promoted."),
    T.SUCCEEDED: ("BatchLoad", "The last run succeeded; Unknown while it is pending or running."),
    T.LATE: ("BatchLoad", "A scheduled run failed, was skipped, or has not started in time."),
    T.DATA_QUALITY: ("BatchLoad", "Every record of the last successful run parsed, and none was gone."),
}
EVERY: Final = "every kind"
REASONS: Final[dict[Reason, tuple[str, str, str]]] = {
    R.INVALID_SPEC: (EVERY, "The spec breaks a rule.", "Correct the field that the message names."),
    R.RECONCILE_FAILED: (EVERY, "An attempt failed; the operator retries.", "Read the message: a broker or the API server does not respond, or a right is missing. If it stays, look at the operator's log."),
    R.RECONCILE_PAUSED: (EVERY, "The annotation `millstream.dev/paused` is set.", "Remove the annotation to resume."),
    R.OBJECT_NOT_OURS: (EVERY, "An object of the needed name exists and has no owner or another one.", "Delete or rename that object, or rename the resource."),
    R.CLUSTER_NOT_FOUND: ("with a `clusterRef`", "There is no Cluster of that name in that namespace.", "Correct `clusterRef`, or create the Cluster."),
    R.CLUSTER_NOT_READY: ("with a `clusterRef`", "The Cluster's brokers do not respond yet, or a partition has no leader.", "Look at the Cluster's own conditions. If the message names partitions: start a broker that has a replica of each."),
    R.NAMESPACE_NOT_ALLOWED: ("with a `clusterRef`, and MirrorMaker", "The Cluster does not allow this namespace.", "Add the namespace to the Cluster's `allowedNamespaces`."),
    R.OTHER_RELEASE: ("with a `clusterRef`", "Another release of the operator acts in the Cluster's namespace.", "Give both namespaces to one release ([how](../operations.md#which-release-acts-in-a-namespace))."),
    R.ALL_BROKERS_READY: ("Cluster", "All brokers serve.", ""),
    R.BROKERS_STARTING: ("Cluster", "Fewer brokers are ready than there should be.", "Wait. If it stays: `kubectl describe pod`, and the broker's log."),
    R.BROKER_FAILED: ("Cluster", "A broker cannot start or keeps ending.", "The message has its last line, or why Kubernetes cannot start it, such as `ImagePullBackOff`. Read the broker's log."),
    R.PODS_REFUSED: ("Cluster", "Kubernetes refuses to create a pod.", "The message names the quota, policy or limit: change it, or `resources` and `template`."),
    R.LISTENERS_PENDING: ("Cluster", "An external address is missing.", "Check that the load balancer gets an address, or set `advertisedHost`."),
    R.LISTENER_OPEN: ("Cluster", "The Internal listener is to ask for a login or to speak TLS, and is still open.", "Wait for the end of the runs that the message names, and remove the pause or the problem of the MirrorMakers that it names."),
    R.NOT_STATED: ("Cluster", "Listeners have no authentication or no TLS, and the spec does not state it.", "[Close them](../how-to/secure.md), or state `authentication: {type: None}` and `tls: Disabled`, in the listener or in `listenerDefaults`."),
    R.PLAINTEXT_LISTENER: ("Cluster", "An old external listener does not say that it is plain text.", "Add `allowPlaintext: true` if you trust its network, or remove it."),
    R.ZOOKEEPER_NOT_READY: ("Cluster", "Too few ZooKeeper servers are ready.", "Look at the pods `CLUSTER-zookeeper-N` and their volumes."),
    R.UPGRADING: ("Cluster", "The upgrade is in progress.", ""),
    R.OUTSIDE_MAINTENANCE_WINDOW: ("Cluster", "The upgrade waits for a window.", "Wait, or widen `maintenance.windows`."),
    R.WAITING_FOR_CLUSTER: ("Cluster", "Another Cluster is being upgraded.", "Look at that Cluster; it keeps its turn until it is ready."),
    R.RESTARTING: ("Cluster", "Brokers restart one after the other.", ""),
    R.RESTART_BLOCKED: ("Cluster", "The next restart would take a partition below its minimum ISR.", "The message names partitions. Bring their replicas back, or lower `min.insync.replicas`."),
    R.DRAINING: ("Cluster", "Replicas leave brokers that will be removed.", "Wait; the message says how many are left."),
    R.SPREADING: ("Cluster", "Replicas move to brokers that were added.", ""),
    R.SCALE_DOWN_REFUSED: ("Cluster", "The remaining brokers could not hold all replicas.", "Lower the replication factor of the topics in the message, or keep the brokers."),
    R.RACKS_UNKNOWN: ("Cluster", "The operator may not read nodes, so brokers have no rack.", "Set `operator.readNodes: true` in the chart, or remove `brokers.rack`."),
    R.VOLUME_NOT_RESIZED: ("Cluster", "A volume cannot grow.", "Use a storage class with `allowVolumeExpansion`, or set the old size again."),
    R.CERTIFICATES_CURRENT: ("Cluster", "Brokers have certificates for their listeners with TLS, and no authority is being replaced.", ""),
    R.AUTHORITY_BOTH_TRUSTED: ("Cluster", "A new certificate authority is published beside the old one, which still issues.", "Give clients that do not read the Secret `CLUSTER-cluster-ca-cert` its new `ca.crt` before the time in the message."),
    R.AUTHORITY_REISSUED: ("Cluster", "The new authority has issued all certificates; brokers are about to serve them.", ""),
    R.AUTHORITY_RETIRING: ("Cluster", "All brokers serve certificates of the new authority; the old one is trusted for a while.", ""),
    R.AUTHORITY_INVALID: ("Cluster, User", "The authority that `certificateAuthority.secretName` names cannot issue certificates, or a User's Cluster has none.", "The message says what is wrong, and with which Secret: correct it. Brokers keep their certificates."),
    R.CERTIFICATE_NOT_SERVED: ("Cluster", "Brokers do not serve the certificate that was issued for them ten minutes ago.", "Read their logs: they refuse it, or do not see the Secret `CLUSTER-brokers-tls`."),
    R.TOPIC_READY: ("Topic", "The topic is as the spec says.", ""),
    R.READ_ONLY_REPLICA: ("Topic", "A mirror keeps the topic as a replica: its source decides partitions and configuration.", "To apply the spec, [promote](../identity-mirrors.md#promotion) the mirror."),
    R.PARTITION_DECREASE_REFUSED: ("Topic", "A topic cannot have fewer partitions.", "Set `partitions` to the present number or more, or create another topic."),
    R.REASSIGNING: ("Topic", "Replicas move because the replication factor changed.", ""),
    R.INVALID_REPLICATION_FACTOR: ("Topic", "There are fewer brokers than replicas.", "Lower `replicationFactor`, or add brokers."),
    R.INVALID_TOPIC: ("Topic", "Kafka does not allow this name.", "Use letters, digits, `.`, `_` and `-` in `topicName`, at most 249."),
    R.CONFLICTING_TOPIC: ("Topic", "An older Topic has the same topic of the same Cluster.", "Delete one of the two resources, or give it another `topicName`."),
    R.STRAY_LOGS: ("Cluster, Topic", "Brokers keep logs that fit no topic, as strays; the message says how many, and on which brokers. A Topic: the cluster has lost the topic, or partitions of it, and nothing is created.", "If topics are missing, restore the cluster's ZooKeeper. Otherwise remove the strays (`millstream stray remove`); a lost topic is then created empty ([strays](../troubleshooting.md#a-topic-is-gone-and-brokers-keep-its-logs-straylogs))."),
    R.REFUSED: ("Topic, MirrorMaker", "The brokers rejected the request.", "The message is the brokers' own."),
    R.DELETING: ("every kind with `deletionPolicy`", "The topic, offsets or volumes are being deleted.", "Wait. To give up on deletion: `kubectl annotate … millstream.dev/skip-deletion=true`."),
    R.INVALID_CONFIG: ("Cluster, Topic", "The broker rejects a key or value of `config`.", "Correct the key that the message names ([all keys](broker-configuration.md))."),
    R.MINIMUM_ISR: ("Cluster, Topic", "`min.insync.replicas` needs every replica, so `acks=all` waits while a broker restarts.", "Lower it, or raise `replicationFactor`."),
    R.USER_READY: ("User", "The user has the password, access rules and quotas of the spec.", ""),
    R.RESERVED_USER: ("User", "The name is that of clients without authentication, or of a user who may do everything in a Cluster of another namespace.", "Give the user another `userName`, or create the User in the namespace of the Cluster."),
    R.CONFLICTING_USER: ("User", "An older User has the same user of the same Cluster.", "Delete one of the two resources, or give it another `userName`."),
    R.INVALID_ACCESS_RULE: ("User", "A rule allows an operation that its resource does not have.", "Correct the operation that the message names; nothing of the spec was applied."),
    R.NO_AUTHORIZER: ("User", "The brokers check no access rules.", "Set `authorization` in the Cluster, too, or remove it from the User."),
    R.OPERATOR_NOT_AUTHORIZED: ("User", "The brokers refuse the operator's requests.", "Add the operator's principal to `super.users` of the Cluster: `User:ANONYMOUS` on a listener without authentication."),
    R.ACCESS_CHANGED: ("User", "Others changed access rules or quotas of a User with `drift: Report`.", "Change the spec, or set `drift: Mend`."),
    R.SECRET_MISSING: ("Cluster, User", "A Secret that the spec names does not exist.", "Create it, with the key that the message names."),
    R.SECRET_INVALID: ("Cluster, User", "A Secret has no usable password or certificate.", "Correct the key that the message names. A generated Secret: delete it, and a new password is generated."),
    R.SECRET_NOT_READABLE: ("Cluster, User", "The operator has no right to Secrets.", "Set `operator.users: true` in the chart."),
    R.GROUP_OBSERVED: ("ConsumerGroup", "The operator sees the group and its offsets.", ""),
    R.CONFLICTING_GROUP: ("ConsumerGroup", "An older ConsumerGroup has the same group of the same Cluster.", "Delete one of the two."),
    R.TOPIC_NOT_FOUND: ("ConsumerGroup, BatchLoad", "A topic of `topics` does not exist.", "Create it, or correct `topics`."),
    R.WITHIN_MAX_LAG: ("ConsumerGroup", "The lag is within `maxLag`.", ""),
    R.ABOVE_MAX_LAG: ("ConsumerGroup", "The lag is above `maxLag`.", "Check that consumers run; add members, up to the number of partitions."),
    R.GROUP_UNUSED: ("ConsumerGroup", "The group has no members and no offsets yet.", "Start its consumers."),
    R.NOTHING_COMMITTED: ("ConsumerGroup", "The lag grows, and the group commits nothing.", "Start its consumers, or read their logs: one may hang at a record."),
    R.CONSUMING: ("ConsumerGroup", "The group commits, or its lag does not grow.", ""),
    R.RESET_DONE: ("ConsumerGroup", "The reset was carried out.", ""),
    R.RESET_REFUSED: ("ConsumerGroup", "The reset was not carried out.", "Read the message, and request it again with a new `requestId`."),
    R.RESET_CANCELLED: ("ConsumerGroup", "The request was removed before it was carried out.", ""),
    R.WAITING_FOR_MEMBERS: ("ConsumerGroup", "The reset waits until the group has no members.", "Stop the consumers."),
    R.WORKLOAD_READY: ("ConsumerGroup", "All consumers are ready.", ""),
    R.WORKLOAD_STARTING: ("ConsumerGroup", "Fewer or more consumers run than there should be.", "Wait. If it stays: `kubectl describe pod`."),
    R.WORKLOAD_FAILED: ("ConsumerGroup", "A consumer ended with an error.", "Read the message and the consumer's log."),
    R.WORKLOAD_REFUSED: ("ConsumerGroup, MirrorMaker", "Kubernetes refuses the pods of a ConsumerGroup, or a MirrorMaker's Deployment; its former workers continue.", "The message names the field, quota or policy: change it."),
    R.MIRRORING: ("MirrorMaker", "Workers copy records.", ""),
    R.WORKERS_STARTING: ("MirrorMaker", "Fewer workers are ready, or have the present spec, than there should be; or they have yet to report or to read their partitions, or do not answer.", "Wait. If it stays: `kubectl describe pod`, and the worker's log."),
    R.WORKER_FAILED: ("MirrorMaker", "A worker ended with an error.", "Read the message and the worker's log."),
    R.NO_WORKERS: ("MirrorMaker", "`replicas` is 0.", "Raise it to resume."),
    R.SAME_CLUSTER: ("MirrorMaker", "Source and target are one cluster.", "Name another Cluster."),
    R.MIRROR_LOOP: ("MirrorMaker", "Mirrors would copy records in a loop.", "Use `naming: Prefixed`, or exclude the topics that the message names ([more](../mirroring.md#loops))."),
    R.SOURCES_REACHABLE: ("MirrorMaker", "Workers reach every source.", ""),
    R.SOURCE_UNREACHABLE: ("MirrorMaker", "A source does not respond.", "Check its address and its NetworkPolicies, and whether its listener requires `tls` or `sasl`."),
    R.TARGET_UNREACHABLE: ("MirrorMaker", "The target does not respond.", "Check its address and its NetworkPolicies, and whether its listener requires `tls` or `sasl`."),
    R.CREDENTIALS_MISSING: ("MirrorMaker, BatchLoad", "A Secret or key that `tls` or `sasl` names, or that of a load's own user, does not exist, or its value is not usable.", "Create or correct it; workers find it by themselves ([TLS and SASL](../mirroring.md#tls-and-sasl))."),
    R.TLS_FAILED: ("MirrorMaker", "One side refuses the other's certificate.", "Check `caCertificates`, the host in `bootstrap`, the dates of the certificate, and the client's `certificate`."),
    R.AUTHENTICATION_FAILED: ("MirrorMaker", "The cluster refuses user name or password, or does not serve the mechanism.", "Correct `sasl` or its Secret."),
    R.DIVERGED: ("MirrorMaker", "The source's log lacks records that the target has, or has others; the partition waits.", "Restore a newer copy of the source, or delete the topic in the target to copy the source's ([why](../mirroring.md#when-the-source-loses-records)). With `mode: Identity`, you can promote it instead ([how](../identity-mirrors.md#when-an-identity-mirror-stops))."),
    R.BATCH_NOT_MIRRORED: ("MirrorMaker", "The next batch has an old format or is damaged (`mode: Aggregate`); the partition waits.", "Repair the source, or exclude the topic."),
    R.RECORD_TOO_LARGE: ("MirrorMaker", "A batch is larger than the target's topic allows; its partition waits.", "Raise `max.message.bytes` of that topic in the target."),
    R.TOPIC_REFUSED: ("MirrorMaker", "The target refuses to create a topic or to add partitions; with `mode: Identity`, an ordinary topic of the name exists, or a topic cannot rejoin.", "Follow the message ([identity mirrors](../identity-mirrors.md#when-an-identity-mirror-stops))."),
    R.PARTITION_WAITING: ("MirrorMaker", "A partition has not been mirrored for 30 seconds or longer: its leader in the source or the target is missing or does not respond, or requests fail.", "The message names partitions, side and cause. Start or repair the broker ([more](../mirroring.md#when-a-partition-waits))."),
    R.MIRRORED_TWICE: ("MirrorMaker", "Another mirror copies the topic from the same source.", "Exclude it in one of the two, or delete the group that the message names ([why](../mirroring.md#when-two-mirrors-copy-one-topic))."),
    R.NAME_TAKEN: ("MirrorMaker", "An older MirrorMaker keeps its progress in the same group of the same target.", "Create this one under another name ([why](../mirroring.md#when-two-mirrors-have-one-name))."),
    R.PATTERN_UNMATCHED: ("MirrorMaker", "A pattern of `topics.include` or `groups.include` selects no topic or group of any source.", "Correct the pattern: it matches whole names; or create the topic or group."),
    R.NO_TOPICS: ("MirrorMaker", "The patterns select no topic of a source.", "Correct `topics`; topics are copied when they exist."),
    R.CAUGHT_UP: ("MirrorMaker", "The target is at most ten seconds behind the sources.", "For a planned move, also wait until everything is copied: `millstream mirror wait`."),
    R.BEHIND: ("MirrorMaker", "The target is more than ten seconds behind a source, or a partition has not been caught up yet.", "Wait. If the lag grows, raise `replicas`."),
    R.REJOINING: ("MirrorMaker", "Topics have not finished rejoining; their lag is unknown.", "Wait. If it stays, read the source's `lastError`. Do not promote them ([failing back](../identity-mirrors.md#failing-back))."),
    R.RECORDS_MISSING: ("MirrorMaker", "Retention in the source deleted records before they were copied.", "Raise the source's retention, or the number of workers ([gaps](../mirroring.md#when-the-source-deletes-records-first))."),
    R.STOPPED_AT_GAP: ("MirrorMaker", "A partition waits because records are gone and `onGap` is `Stop`.", "Set `onGap: SkipToEarliest` to continue with the first record that is left."),
    R.NOTHING_MISSING: ("MirrorMaker", "No record is missing.", ""),
    R.PROMOTED: ("MirrorMaker", "The requested topics are writable, and not mirrored any more.", "`status.lastPromotion` has the recovery point ([promotion](../identity-mirrors.md#promotion))."),
    R.PROMOTING: ("MirrorMaker", "The promotion is in progress.", ""),
    R.PROMOTED_BEFORE: ("MirrorMaker", "`promote` requests nothing, but topics were promoted earlier; they are not mirrored.", "Add them to `topics.exclude`, or delete them in the target to mirror them from their start."),
    R.PROMOTION_REFUSED: ("MirrorMaker", "The request cannot be carried out; nothing was promoted.", "Correct what the message names, and give `promote` another `requestId`."),
    R.MIRRORED_AGAIN: ("MirrorMaker", "A promoted topic was deleted in the target, so the mirror has created it again.", "Give `promote` another `requestId` to promote it, or leave it."),
    R.TOPIC_PROMOTED: ("MirrorMaker", "Topics that the spec selects were promoted before, and the mirror overwrites none of them.", "Add them to `topics.exclude`, or delete them in the target to mirror them from their start."),
    R.SCHEDULED: ("BatchLoad", "The next run waits for its time.", ""),
    R.SUSPENDED: ("BatchLoad", "`suspend` is true.", "Set it to false to resume."),
    R.WAITING_FOR_RECORDS: ("BatchLoad", "There are fewer records than `minRecords`.", "Wait, or lower `minRecords`."),
    R.TOPIC_REPLACED: ("Topic, BatchLoad, MirrorMaker", "The topic was deleted and created again, or (BatchLoad) its log was restored from an older copy, so its offsets mean other records.", "Topic: a warning until `spec` changes. Load: set `from` to the offsets in the message, with a new `requestId`. Mirror: delete the copy, or exclude the topic."),
    R.OFFSETS_GONE: ("BatchLoad", "Retention deleted records before they were loaded.", "Set `from` to the offsets in the message, with a new `requestId`, and raise the topic's retention."),
    R.CONFLICTING_TABLE: ("BatchLoad", "An older BatchLoad has the same `output.path`, or one inside or around it, or the table names another load as its owner.", "Use another path."),
    R.ALREADY_LOADED: ("BatchLoad", "The table has records of the load's first run, such as those of a deleted load of the same name; or of a failed run before `topics` or `until` were edited; or those of this `requestId`, which the load's status does not know.", "Undo such an edit. Otherwise use another path, let `from` begin where the table ends, or give `from` another `requestId` to add them again ([why](../loads.md#start-of-a-run))."),
    R.TABLE_REPLACED: ("BatchLoad", "The table does not end with the run that the status names: status or table was restored from an older copy, or the table was deleted, created again or replaced.", "Compare the table with the log, delete rows that should not be there, then set `from` to where the load should continue, with a new `requestId` ([why](../loads.md#start-of-a-run)). Or use another path."),
    R.FENCED: ("BatchLoad", "A later run of the load has taken this run's name in the table, so this one published nothing and never will.", "Nothing: the next run starts at once. If it happens again, two operators run the same load, such as a copied data folder beside the original."),
    R.RUN_PENDING: ("BatchLoad", "A run begins.", ""),
    R.PODS_PENDING: ("BatchLoad", "Kubernetes cannot start the run's driver, or none of its executors.", "The message has Kubernetes' reason: no room, no image, no volume, a quota."),
    R.RUNNING: ("BatchLoad", "Spark runs.", ""),
    R.SUCCEEDED: ("BatchLoad", "The last run succeeded.", ""),
    R.RUN_FAILED: ("BatchLoad", "The last run failed.", "`status.lastRun` has the error and the end of the driver's log. Any edit starts the next run."),
    R.OOM_KILLED: ("BatchLoad", "Spark ran out of memory.", "Raise `spark.driver.memory` or `spark.executor.memory`."),
    R.DEADLINE_EXCEEDED: ("BatchLoad", "The run took longer than `timeoutSeconds`.", "Raise it, or give Spark more executors."),
    R.ON_SCHEDULE: ("BatchLoad", "Runs start on time.", ""),
    R.RUN_LATE: ("BatchLoad", "A scheduled run has not started.", "See the condition `Ready`."),
    R.RUN_SKIPPED: ("BatchLoad", "A run did not start within `startingDeadlineSeconds`.", "Nothing is lost: the next run loads its records, too."),
    R.ALL_RECORDS_PARSED: ("BatchLoad", "Every record parsed.", ""),
    R.CORRUPT_RECORDS: ("BatchLoad", "Some records did not parse; if there are more than `maxCorruptRecords`, the run has failed.", "Look at `_corrupt_record` in the table; correct `value` or the producer, or raise the limit."),
    R.TABLE_NOT_PORTABLE: ("BatchLoad", "Loads work, but the table has a feature with which some readers cannot read it, such as Delta's deletion vectors.", "The message has the commands that remove it; leave it if all your readers know it."),
    R.RUNNER_NOT_AVAILABLE: ("BatchLoad", "Kubernetes does not know SparkApplications, or the laptop has no Java.", "Install Kubeflow's operator, or set `runner: Job`; on a laptop install Java 17."),
    R.OUTPUT_NOT_WRITABLE: ("BatchLoad", "The table cannot be written.", "Check the path, the volume and its permissions, or the credentials."),
}  # fmt: skip
"""Kinds, meaning, and remedy; empty if there is nothing to do."""

HEAD = """# Conditions and their reasons

Written by `make docs/reference/conditions.md`; a test holds it to the operator's own list. `kubectl describe` shows a
resource's conditions, `millstream local status` shows `Ready`. The message of a condition has the details: names, values
and what is allowed. Scripts may match types and reasons, which keep their names; messages may change.
"""

ENDS = """`RollingUpdate`, `Upgrading`, `Rebalancing` and `Warning` disappear when they are over; they do not become False. (`Upgrading` is
False while the Cluster waits.) So `kubectl wait` cannot wait for their end:
[this script](../operations.md#wait-for-the-end-of-a-change) can."""


def page() -> str:
    """The whole page."""
    lines = [HEAD, "## Conditions", "", "| condition | kinds | when it is True |", "|---|---|---|"]
    lines += [f"| `{one.value}` | {kinds} | {text} |" for one, (kinds, text) in TYPES.items()]
    lines += ["", ENDS]
    lines += ["", "## Reasons", "", "| reason | kinds | meaning | what to do |", "|---|---|---|---|"]
    rows = sorted(REASONS.items(), key=lambda entry: entry[0].value.lower())
    lines += [f"| `{reason.value}` | {kinds} | {text} | {deed} |" for reason, (kinds, text, deed) in rows]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.stdout.write(page())
