"""A client without a login, in a pod: what it reads and changes in a ZooKeeper. Prints one JSON object, path by path.

python3 -c CODE SERVERS
"""

from __future__ import annotations

import json
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

READS = ("/brokers/ids", "/cluster/id", "/cluster/secret", "/config/users", "/config/brokers")
CHANGES = (
    "/brokers/ids/7",
    "/config/users/mallory",
    "/brokers/topics/mallory",
    "/anything",
    "/consumers/stranger",
)


def main() -> None:
    client = KazooClient(sys.argv[1], timeout=30)
    client.start(30)
    found = {}
    for path in READS:
        try:
            client.get(path)
            found[f"read {path}"] = "allowed"
        except (NoAuthError, NoNodeError) as error:
            found[f"read {path}"] = type(error).__name__
    for path in CHANGES:
        try:
            client.create(path, b"{}")
            client.delete(path)
            found[f"create {path}"] = "allowed"
        except (NoAuthError, NoNodeError) as error:
            found[f"create {path}"] = type(error).__name__
    client.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
