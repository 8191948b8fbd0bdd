"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: configuration, its sources, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream_harness.beside import IS_THE_PEER, Beside
from millstream_harness.java import is_before
from millstream_kafka.protocol import alter_configs, describe_configs, incremental_alter_configs

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

TIERED = "There is no tiered storage: its keys are not listed."
OURS = "Only topics and brokers have configuration here."
WORDS = "Ours says which type it does not know."
UNKNOWN_KEPT = "Kafka keeps a broker's unknown keys, as plugins may read them; there are none here."
SMALL = "Segments may be as small as in Kafka 3."
NEWER = "A key of Kafka 4.4."
NO_TIERS = {
    "[local.retention": TIERED,
    "[remote.": TIERED,
    "[millstream.": "Our own.",
    "[max.decompressed.": NEWER,
}

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(
    beside: Beside,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    versions: list[int] | None = None,
    **more: Any,
) -> None:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    if kind == TOPIC and not keys:
        more["but"] = NO_TIERS
    beside.same(describe_configs.API, versions, resources=[resource], **more)


@pytest.fixture(autouse=True, scope="module")
def there(beside: Beside) -> None:
    beside.create(
        "configured", cleanup_policy="compact,delete", retention_ms="1234", max_message_bytes="2000"
    )
    beside.create("described-a")


def test_topics_are_described(beside: Beside) -> None:
    for name in ("configured", "described-a"):
        describe(beside, TOPIC, name)
        describe(beside, TOPIC, name, include_synonyms=True)
        describe(
            beside, TOPIC, name, ["retention.ms", "no.such.key", "cleanup.policy"], include_synonyms=True
        )
        describe(beside, TOPIC, name, [])


@pytest.mark.parametrize("kind", [0, 1, 3, -1, 99])
def test_kinds_that_are_not_described(beside: Beside, kind: int) -> None:
    describe(beside, kind, "", but={"error_message": WORDS})
    describe(beside, kind, "name", ["a"], but={"error_message": WORDS})


@pytest.mark.parametrize(
    ("kind", "name"), [(LOGGER, "x"), (LOGGER, "99"), (LOGGER, "1"), (CLIENT_METRICS, "m"), (GROUP, "g")]
)
def test_kinds_that_have_no_configuration_here(beside: Beside, kind: int, name: str) -> None:
    differs = {"1": "configs", "m": "configs", "g": "configs", "99": "error_message"}
    describe(beside, kind, name, but={differs[name]: OURS} if name in differs else {})


@pytest.mark.parametrize("name", ["no-such", "", "a/b", "..", "n" * 250])
def test_topics_that_are_not_there(beside: Beside, name: str) -> None:
    describe(beside, TOPIC, name, ["retention.ms"])
    for value in ("1", "x"):
        configs = [{"name": "retention.ms", "value": value}]
        beside.same(
            alter_configs.API, resources=[{"resource_type": TOPIC, "resource_name": name, "configs": configs}]
        )
        configs = [{"name": "retention.ms", "value": value, "config_operation": SET}]
        beside.same(
            incremental_alter_configs.API,
            resources=[{"resource_type": TOPIC, "resource_name": name, "configs": configs}],
        )


@pytest.mark.parametrize("name", ["2", "-1", "one", "1.0", " 1"])
def test_brokers_that_are_not_there(beside: Beside, name: str) -> None:
    describe(beside, BROKER, name)
    configs = [{"name": "log.retention.ms", "value": "1000"}]
    asked = {"resource_type": BROKER, "resource_name": name}
    beside.same(alter_configs.API, resources=[{**asked, "configs": configs}])
    beside.same(incremental_alter_configs.API, resources=[{**asked, "configs": configs}])


def test_the_same_resource_twice(beside: Beside) -> None:
    one = {"resource_type": TOPIC, "resource_name": "configured", "configuration_keys": ["retention.ms"]}
    beside.same(describe_configs.API, resources=[one, one])
    change = {"resource_type": TOPIC, "resource_name": "described-a", "configs": []}
    beside.same(incremental_alter_configs.API, resources=[change, change])
    beside.same(alter_configs.API, resources=[])
    beside.same(incremental_alter_configs.API, resources=[])
    beside.same(describe_configs.API, resources=[])


ONE = [("retention.ms", "1000")]
ALTERED = {
    "nothing": [],
    "one": ONE,
    "another": [("segment.ms", "70000"), ("cleanup.policy", "compact")],
    "unknown": [("no.such.key", "1")],
    "null": [("retention.ms", None)],
    "twice": [("retention.ms", "1"), ("retention.ms", "2")],
    "two nulls": [("retention.ms", None), ("segment.ms", None)],
    "empty key": [("", "1")],
    "empty value": [("retention.ms", "")],
    "empty list": [("cleanup.policy", "")],
    "comma after": [("cleanup.policy", "compact,")],
    "comma alone": [("cleanup.policy", ",")],
    "comma inside": [("cleanup.policy", "compact,,delete")],
    "list with blanks": [("cleanup.policy", "compact , delete")],
    "list with a blank item": [("cleanup.policy", "compact, ,delete")],
    "throttled replicas twice": [("leader.replication.throttled.replicas", "0:1,0:1")],
    "throttled replicas with blanks": [("leader.replication.throttled.replicas", "0:1 , 1:1")],
    "throttled replicas empty": [("leader.replication.throttled.replicas", "")],
    "throttled replicas all twice": [("leader.replication.throttled.replicas", "*,*")],
    "underscores": [("retention.ms", "1_000")],
    "underscores in a double": [("min.cleanable.dirty.ratio", "0_0.5")],
    "nan": [("min.cleanable.dirty.ratio", "nan")],
    "throttled replicas with a comma": [("leader.replication.throttled.replicas", "0:1,")],
    "plus": [("retention.ms", "+1002")],
    "blanks": [("retention.ms", " 1001 ")],
    "upper case": [("preallocate", "TRUE")],
    "no number": [("retention.ms", "1e3")],
    "no double": [("min.cleanable.dirty.ratio", "half")],
    "no boolean": [("preallocate", "yes")],
    "range": [("min.insync.replicas", "0")],
    "below both": [("compression.gzip.level", "-2")],
    "gzip level 0": [("compression.gzip.level", "0")],
    "gzip level 10": [("compression.gzip.level", "10")],
    "lz4 level": [("compression.lz4.level", "18")],
    "zstd level": [("compression.zstd.level", "23")],
    "one bad one good": [("retention.ms", "5"), ("segment.ms", "0")],
    "throttled replicas": [("leader.replication.throttled.replicas", "*")],
    "throttled replicas 2": [("leader.replication.throttled.replicas", "0:1,1:1")],
    "throttled replicas bad": [("leader.replication.throttled.replicas", "zero")],
    "timestamp type": [("message.timestamp.type", "logappendtime")],
}
if not is_before(4, 3):  # which keep the text
    ALTERED |= {
        "list with the same twice": [("cleanup.policy", "delete,delete")],
        "list with the same twice apart": [("cleanup.policy", "compact, delete,compact")],
    }


@pytest.mark.parametrize("case", ALTERED)
def test_topics_are_altered(beside: Beside, case: str) -> None:
    resource = {
        "resource_type": TOPIC,
        "resource_name": "described-a",
        "configs": [{"name": key, "value": value} for key, value in ALTERED[case]],
    }
    for validate_only in (True, False):
        beside.same(alter_configs.API, resources=[resource], validate_only=validate_only)
    settle(beside)
    describe(beside, TOPIC, "described-a", versions=[4], include_synonyms=True)


def settle(beside: Beside) -> None:
    """Wait until Kafka's broker has applied all changes so far, which it does in order."""
    count = next(_counter)
    configs = [{"name": "flush.ms", "value": str(count), "config_operation": SET}]
    resource = {"resource_type": TOPIC, "resource_name": "configured", "configs": configs}
    beside.same(incremental_alter_configs.API, [1], resources=[resource])
    asked = {"resource_type": TOPIC, "resource_name": "configured", "configuration_keys": ["flush.ms"]}
    beside.until(
        lambda answer: answer["results"][0]["configs"][0]["value"] == str(count),
        describe_configs.API,
        4,
        resources=[asked],
    )


def _count() -> Iterator[int]:
    yield from range(1000, 100_000)


_counter = _count()

STEPS: dict[str, list[tuple[str, int, str | None]]] = {
    "set": [("retention.ms", SET, "77")],
    "set empty": [("retention.ms", SET, "")],
    "set null": [("retention.ms", SET, None)],
    "set bad": [("retention.ms", SET, "bad")],
    "set unknown": [("no.such.key", SET, "1")],
    "delete": [("retention.ms", DELETE, None)],
    "delete again": [("retention.ms", DELETE, "whatever")],
    "delete unknown": [("no.such.key", DELETE, None)],
    "append": [("cleanup.policy", APPEND, "compact")],
    "append again": [("cleanup.policy", APPEND, "compact")],
    "append null": [("cleanup.policy", APPEND, None)],
    "append unknown": [("no.such.key", APPEND, "1")],
    "append bad": [("cleanup.policy", APPEND, "keep")],
    "append to a number": [("retention.ms", APPEND, "1")],
    "append to text": [("compression.type", APPEND, "zip")],
    "subtract": [("cleanup.policy", SUBTRACT, "delete")],
    "subtract what is not there": [("cleanup.policy", SUBTRACT, "delete")],
    "subtract the last": [("cleanup.policy", SUBTRACT, "compact")],
    "subtract null": [("cleanup.policy", SUBTRACT, None)],
    "subtract from a number": [("retention.ms", SUBTRACT, "1")],
    "append to nothing": [("cleanup.policy", APPEND, "delete")],
    "append replicas": [("leader.replication.throttled.replicas", APPEND, "0:1,1:1")],
    "append more replicas": [("leader.replication.throttled.replicas", APPEND, "1:1,2:1")],
    "subtract replicas": [("leader.replication.throttled.replicas", SUBTRACT, "0:1,5:1")],
    "twice": [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
    "several": [("retention.ms", SET, "8"), ("segment.ms", SET, "9"), ("cleanup.policy", DELETE, None)],
    "one bad of several": [("retention.ms", SET, "9"), ("segment.ms", SET, "no")],
    "empty": [],
}
if not is_before(4, 3):
    STEPS |= {
        "append twice": [("cleanup.policy", APPEND, "delete,delete")],
        "set twice": [("cleanup.policy", SET, "compact,compact")],
        "append to what is there twice": [("cleanup.policy", APPEND, "delete")],
        "delete what was there twice": [("cleanup.policy", DELETE, None)],
    }


def test_topics_are_altered_step_by_step(beside: Beside) -> None:
    beside.create("steps")
    for steps in STEPS.values():
        configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in steps]
        resource = {"resource_type": TOPIC, "resource_name": "steps", "configs": configs}
        for validate_only in (True, False):
            beside.same(incremental_alter_configs.API, resources=[resource], validate_only=validate_only)
        settle(beside)
        describe(beside, TOPIC, "steps", versions=[4], include_synonyms=True)


BROKER_STEPS: dict[str, list[tuple[str, int, str | None]]] = {
    "dynamic": [("log.retention.ms", SET, "123456")],
    "again": [("log.retention.ms", SET, "1234567")],
    "list": [("log.cleanup.policy", SET, "compact")],
    "list appended": [("log.cleanup.policy", APPEND, "delete")],
    "bad": [("log.retention.ms", SET, "bad")],
    "below the range": [("log.index.interval.bytes", SET, "-1")],
    "read-only": [("num.partitions", SET, "3")],
    "read-only deleted": [("num.partitions", DELETE, None)],
    "read-only and good": [("num.partitions", SET, "3"), ("log.retention.ms", SET, "5")],
    "null": [("log.retention.ms", SET, None)],
    "append to a number": [("log.retention.ms", APPEND, "1")],
    "deleted": [("log.retention.ms", DELETE, None)],
    "empty list": [("log.cleanup.policy", SET, "")],
    "all deleted": [("log.cleanup.policy", DELETE, None)],
    "min.insync.replicas": [("min.insync.replicas", SET, "1")],
    "min.insync.replicas back": [("min.insync.replicas", DELETE, None)],
    "message.max.bytes": [("message.max.bytes", SET, "900000")],
    "message.max.bytes back": [("message.max.bytes", DELETE, None)],
    "per listener": [("max.connections", SET, "1000000")],
    "per listener back": [("max.connections", DELETE, None)],
}


@pytest.mark.parametrize("name", ["1", ""])
def test_brokers_are_altered_step_by_step(beside: Beside, name: str) -> None:
    for steps in BROKER_STEPS.values():
        configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in steps]
        resource = {"resource_type": BROKER, "resource_name": name, "configs": configs}
        for validate_only in (True, False):
            beside.same(incremental_alter_configs.API, resources=[resource], validate_only=validate_only)
        settle(beside)
        describe(beside, BROKER, name, sorted({key for key, _, _ in steps}), [4], include_synonyms=True)
        if not name:
            describe(beside, BROKER, name, versions=[4], include_synonyms=True)
        describe(beside, TOPIC, "steps", versions=[4], include_synonyms=True)


@pytest.mark.parametrize("name", ["1", ""])
def test_brokers_are_altered_as_a_whole(beside: Beside, name: str) -> None:
    for given in (
        [("log.retention.ms", "5000"), ("log.segment.bytes", "2000000")],
        [("log.retention.ms", "6000")],
        [("num.partitions", "6000")],
        [("log.retention.ms", "bad")],
        [("log.retention.ms", None)],
        [],
    ):
        configs = [{"name": key, "value": value} for key, value in given]
        resource = {"resource_type": BROKER, "resource_name": name, "configs": configs}
        for validate_only in (True, False):
            beside.same(alter_configs.API, resources=[resource], validate_only=validate_only)
        settle(beside)
        describe(beside, BROKER, name, ["log.retention.ms", "log.segment.bytes"], include_synonyms=True)


@pytest.mark.skipif(not IS_THE_PEER, reason="Kafka 4.1 keeps duplicates there, and 4.4 refuses them")
def test_duplicates_in_a_brokers_list(beside: Beside) -> None:
    why = "Kafka shows the text that was set, although it uses each item once."

    def step(operation: int, value: str | None, **but: dict[str, str]) -> None:
        change = {"name": "log.cleanup.policy", "config_operation": operation, "value": value}
        resource = {"resource_type": BROKER, "resource_name": "1", "configs": [change]}
        beside.same(incremental_alter_configs.API, resources=[resource])
        settle(beside)
        describe(beside, BROKER, "1", ["log.cleanup.policy"], [4], include_synonyms=True, **but)

    step(SET, "compact,delete,compact", but={"synonyms[log.cleanup.policy]": why})
    step(DELETE, None)


def test_where_they_differ(beside: Beside) -> None:
    def step(kind: int, name: str, key: str, value: str, operation: int = SET, **but: dict[str, str]) -> None:
        configs = [{"name": key, "config_operation": operation, "value": value}]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        beside.same(incremental_alter_configs.API, resources=[resource], validate_only=True, **but)

    for operation in (4, -1):
        step(
            TOPIC,
            "steps",
            "retention.ms",
            "9",
            operation,
            but={"error_code": "Kafka answers UNKNOWN_SERVER_ERROR."},
        )
    for name in ("1", ""):
        step(BROKER, name, "no.such.key", "9", but={"error_code": UNKNOWN_KEPT})
        step(BROKER, name, "log.segment.bytes", "14", but={"error_": SMALL})
    step(TOPIC, "steps", "segment.bytes", "14", but={"error_": SMALL})
    step(TOPIC, "steps", "remote.storage.enable", "true", but={"error_": TIERED})


@pytest.mark.parametrize("kind", [0, 1, 3, 99, LOGGER, CLIENT_METRICS, GROUP])
@pytest.mark.parametrize("name", ["1", "x"])
def test_kinds_that_are_not_altered(beside: Beside, kind: int, name: str) -> None:
    resource: dict[str, Any] = {"resource_type": kind, "resource_name": name}
    resource["configs"] = [{"name": "retention.ms", "value": "1"}]
    more = {"but": {"error_": OURS}} if kind in (CLIENT_METRICS, GROUP) else {}
    beside.same(alter_configs.API, resources=[resource], validate_only=True, **more)
    more = {"but": {"error_": OURS}} if kind in (CLIENT_METRICS, GROUP, LOGGER) else {}
    beside.same(incremental_alter_configs.API, resources=[resource], validate_only=True, **more)


IDENTITY = "Who a broker is and where it listens: a controller's listener, a port of the system's choice."
THREADS = "There is no such pool of threads to resize."
MEMORY = "Bounded here, as memory is."
BROKER_DIFFERS = {
    "[listeners]": IDENTITY,
    "[advertised.listeners]": IDENTITY,
    "[listener.security.protocol.map]": IDENTITY,
    "[broker.id]": IDENTITY,
    "[log.dir]": IDENTITY,
    "[log.dirs]": IDENTITY,
    "[num.network.threads].read_only": THREADS,
    "[num.io.threads].read_only": THREADS,
    "[background.threads].read_only": THREADS,
    "[num.replica.fetchers].read_only": THREADS,
    "[num.recovery.threads.per.data.dir].read_only": THREADS,
    "[log.cleaner.io.buffer.size].read_only": THREADS,
    "[queued.max.request.bytes]": MEMORY,
    "[sasl.enabled.mechanisms]": "Kerberos, which is Kafka's default, is not served.",
    "[socket.listen.backlog.size]": "Larger: who connects in a herd is not to wait for a retry.",
}
if is_before(4, 2):
    BROKER_DIFFERS["[sasl.oauthbearer.expected.audience]"] = (
        "Nothing there, which is an empty list since 4.2."
    )


def test_brokers_are_described(beside: Beside) -> None:
    """Keys that both have: value, source, type, and whether they can be changed."""
    asked = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
    ours, kafka = beside.ask(describe_configs.API, [4], resources=[asked], include_documentation=True)[0]
    for answer in (ours, kafka):
        assert all(each["documentation"] for each in answer["results"][0]["configs"])
    of_ours, of_kafka = ({each["name"] for each in one["results"][0]["configs"]} for one in (ours, kafka))
    describe(beside, BROKER, "1", sorted(of_ours & of_kafka), include_synonyms=True, but=BROKER_DIFFERS)
