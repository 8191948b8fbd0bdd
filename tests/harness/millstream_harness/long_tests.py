"""Which tests are long: `make test` leaves them out; `make test-all` and CI run every test.

A test is long for what its file does, so the rule goes by files. A new file that fits none of these is in `make test`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

LONG = {
    "the same asked of Apache Kafka, and compared": (
        "tests/compat/beside/*",
        "tests/compat/test_groups_beside_kafka.py",
        "tests/broker/log/test_log_beside_kafka.py",
        "tests/broker/mirror/test_mirror_kafka.py",
    ),
    "brokers flooded, starved, damaged and killed in a loop": ("tests/broker/robustness/*",),
    "a cluster broken for half a minute": ("tests/faults/test_faults.py",),
    "programs in Go and JavaScript, fetched and built first": (
        "tests/compat/test_client_franz_go.py",
        "tests/compat/test_client_kafkajs.py",
    ),
    "a thousand topics": ("tests/operator/test_api_scale.py", "tests/broker/test_cluster_controller.py"),
}
"""Patterns of files, from the repository's root, by what is long in them; * stands for folders, too."""


def is_long(path: str) -> bool:
    """Whether the file's tests are long; the path is relative to the repository's root."""
    return any(fnmatchcase(path, pattern) for patterns in LONG.values() for pattern in patterns)
