#!/usr/bin/env bash
# Apache Kafka 4.3.1: DescribeTopicPartitions answers every topic with error 42 (INVALID_REQUEST) if the cursor's topic is not
# among those of the request.
#
# A response ends with the topic and partition at which the next response starts. A client that then requests only the
# remaining topics gets no partition at all, although the cursor lies before all of them. No message gives the reason: each
# topic has the error. A client must send the whole list of topics with each page. Without topics, any cursor is accepted.
#
# Seen: "all topics: a 0 [2], b 0 [0, 1, 2]; only b: b 42 []; every topic: 0".
#
# Needs Java 17, Maven, Python 3.11 and a free pair of ports; takes a minute. Fails if this changes.
set -euo pipefail
version=4.3.1
folder=$(mktemp -d)
broker=
trap 'if [ -n "$broker" ]; then kill -9 "$broker" 2>/dev/null || true; fi; rm -rf "$folder"' EXIT
cd "$folder"

cat > pom.xml <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId><artifactId>kafka-cursor-of-another-topic</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
POM
mvn -B -q dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$folder/jars"
tool() { java -Xmx256M -cp "$folder/jars/*" "$@" 2>>"$folder/errors"; }

read -r client controller < <(python3 - <<'PY'
import socket
sockets = [socket.socket() for _ in range(2)]
for one in sockets:
    one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in sockets))
PY
)
bootstrap=127.0.0.1:$client
cat > server.properties <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
listeners=PLAINTEXT://$bootstrap,CONTROLLER://127.0.0.1:$controller
controller.listener.names=CONTROLLER
log.dirs=$folder/data
offsets.topic.replication.factor=1
PROPERTIES
tool kafka.tools.StorageTool format --cluster-id "$(tool kafka.tools.StorageTool random-uuid)" --config server.properties >/dev/null

start() {
  java -Xmx512M -cp "$folder/jars/*" kafka.Kafka server.properties >>"$folder/log" 2>&1 &
  broker=$!
  for _ in $(seq 120); do
    if tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$bootstrap" --list >/dev/null; then return; fi
  done
  cat "$folder/log" >&2
  exit 1
}

start
for topic in a b; do
  tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$bootstrap" --create --topic "$topic" --partitions 3 >/dev/null
done
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check kafka-python==3.0.12
seen=$("$folder/venv/bin/python" - "$bootstrap" <<'PY'
import sys

from kafka import KafkaAdminClient

admin = KafkaAdminClient(bootstrap_servers=sys.argv[1])
cursor = {"topic_name": "a", "partition_index": 2}


def page(topics):
    found = admin.describe_topic_partitions(topics, cursor=cursor)["topics"]
    return [(one["name"], one["error_code"], sorted(part["partition_index"] for part in one["partitions"])) for one in found]


def shown(found):
    return ", ".join(f"{name} {error} {parts}" for name, error, parts in found)


print(f"all topics: {shown(page(['a', 'b']))}; only b: {shown(page(['b']))}; every topic: {page([])[0][1]}")
PY
)
echo "Apache Kafka $version: $seen"
[ "$seen" = "all topics: a 0 [2], b 0 [0, 1, 2]; only b: b 42 []; every topic: 0" ]
