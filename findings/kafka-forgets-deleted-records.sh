#!/usr/bin/env bash
# Apache Kafka 4.3.1: records that DeleteRecords has deleted come back if the broker is killed within a minute.
#
# kafka-delete-records answers "low_watermark: 60", and a consumer starts at 60. Kafka keeps this start in memory, and
# writes it into log-start-offset-checkpoint once a minute (log.flush.start.offset.checkpoint.interval.ms). After
# kill -9 and a restart, the log starts at 0 again, and consumers get the 60 records that were deleted. An
# administrator who deletes for a reason (a person's data, a poisoned record) must wait, or lower the interval.
#
# Seen: "low watermark 60, start before the kill 60, start after the kill 0".
#
# Needs Java 17, Maven and a free pair of ports; takes a minute. Fails if this changes.
set -euo pipefail
version=4.3.1
folder=$(mktemp -d)
broker=
trap 'if [ -n "$broker" ]; then kill -9 "$broker" 2>/dev/null || true; fi; rm -rf "$folder"' EXIT
cd "$folder"

cat > pom.xml <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId><artifactId>deleted-records</artifactId><version>1</version><packaging>pom</packaging>
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
earliest() {
  tool org.apache.kafka.tools.GetOffsetShell --bootstrap-server "$bootstrap" --topic orders --time earliest | cut -d: -f3
}

start
tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$bootstrap" --create --topic orders --partitions 1 >/dev/null
seq 100 | tool org.apache.kafka.tools.ConsoleProducer --bootstrap-server "$bootstrap" --topic orders >/dev/null
echo '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "offset": 60}]}' > delete.json
low=$(tool org.apache.kafka.tools.DeleteRecordsCommand --bootstrap-server "$bootstrap" --offset-json-file delete.json |
  sed -n 's/.*low_watermark: *\([0-9]*\).*/\1/p')
before=$(earliest)
kill -9 "$broker"
wait "$broker" 2>/dev/null || true
start
after=$(earliest)

echo "Apache Kafka $version: low watermark $low, start before the kill $before, start after the kill $after"
[ "$low $before $after" = "60 60 0" ]
