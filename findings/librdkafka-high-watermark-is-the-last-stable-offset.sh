#!/usr/bin/env bash
# confluent-kafka 2.16.1 with Apache Kafka 4.3.1: get_watermark_offsets returns the last stable offset as the high watermark,
# and list_offsets of the same library, with its defaults, another number.
#
# A consumer's isolation.level is read_committed unless it is set, and the request for the "high watermark" carries it: while a
# transaction is open, its end is where the transaction begins, however much other producers write behind it. AdminClient's
# list_offsets asks with READ_UNCOMMITTED unless it is told otherwise, and so does kafka-python's end_offsets. A monitor of lag
# that takes one, beside a dashboard that takes the other, disagrees for as long as a transaction stays open, and the lag of a
# stuck group looks like none.
#
# Seen: "get_watermark_offsets: 1", "get_watermark_offsets, read_uncommitted: 4", "list_offsets: 4", "kafka-python: 4".
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
  <groupId>findings</groupId><artifactId>librdkafka-high-watermark-is-the-last-stable-offset</artifactId><version>1</version><packaging>pom</packaging>
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
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
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
tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$bootstrap" --create --topic t --partitions 1 >/dev/null
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1 kafka-python==3.0.12
seen=$("$folder/venv/bin/python" - "$bootstrap" 2>>"$folder/errors" <<'PY'
import sys

import kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

servers = {"bootstrap.servers": sys.argv[1]}
partition = TopicPartition("t", 0)

plain = Producer(servers)
plain.produce("t", b"before")
plain.flush()
transactional = Producer({**servers, "transactional.id": "id"})
transactional.init_transactions()
transactional.begin_transaction()
transactional.produce("t", b"open")
transactional.flush()
for value in (b"behind", b"behind"):
    plain.produce("t", value)
plain.flush()

for name, more in (("", {}), (", read_uncommitted", {"isolation.level": "read_uncommitted"})):
    consumer = Consumer({**servers, "group.id": "g", **more})
    print(f"get_watermark_offsets{name}: {consumer.get_watermark_offsets(partition)[1]}")
    consumer.close()
admin = AdminClient(servers)
latest = admin.list_offsets({partition: OffsetSpec.latest()})[partition].result()
print(f"list_offsets: {latest.offset}")
reader = kafka.KafkaConsumer(bootstrap_servers=sys.argv[1])
print(f"kafka-python: {reader.end_offsets([kafka.TopicPartition('t', 0)])[kafka.TopicPartition('t', 0)]}")
transactional.abort_transaction()
PY
)
echo "$seen"
[ "$seen" = "get_watermark_offsets: 1
get_watermark_offsets, read_uncommitted: 4
list_offsets: 4
kafka-python: 4" ]
