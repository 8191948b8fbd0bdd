#!/usr/bin/env bash
# Apache Kafka 3.9.1: kafka-consumer-groups --reset-offsets prints its plan without line breaks, 4.3.1 a row a line.
#
# Header and rows of a plan follow one another, padded with spaces: a group of three partitions is one line of output.
# --describe of the same release prints a row a line, as do both in 4.3.1. A script that reads
# the plan line by line, to check it before it runs the command with --execute, sees the header alone, and so nothing to move.
#
# Seen: "3.9.1: 3 rows in 1 line(s)", "4.3.1: 3 rows in 4 line(s)" (a header and three rows).
#
# Needs Java 17, Maven, Python 3.11 and a free pair of ports; takes half a minute. Fails if this changes.
set -euo pipefail
version=3.9.1
later=4.3.1
folder=$(mktemp -d)
broker=
trap 'if [ -n "$broker" ]; then kill -9 "$broker" 2>/dev/null || true; fi; rm -rf "$folder"' EXIT
cd "$folder"

jars() {
  mkdir -p "$1"
  cat > "$1/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId><artifactId>kafka-3.9-reset-plan-in-one-line</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$1</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$1</version></dependency>
  </dependencies>
</project>
POM
  mvn -B -q -f "$1/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$folder/$1/jars"
}
jars "$version"
jars "$later"
tool() { java -Xmx256M -cp "$folder/$version/jars/*" "$@" 2>>"$folder/errors"; }

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
  java -Xmx512M -cp "$folder/$version/jars/*" kafka.Kafka server.properties >>"$folder/log" 2>&1 &
  broker=$!
  for _ in $(seq 120); do
    if tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$bootstrap" --list >/dev/null; then return; fi
  done
  cat "$folder/log" >&2
  exit 1
}

start
tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$bootstrap" --create --topic t --partitions 3 >/dev/null
groups=org.apache.kafka.tools.consumer.group.ConsumerGroupCommand
tool "$groups" --bootstrap-server "$bootstrap" --reset-offsets --group g --topic t --to-earliest --execute >/dev/null
seen=$(
  for release in "$version" "$later"; do
    java -Xmx256M -cp "$folder/$release/jars/*" "$groups" --bootstrap-server "$bootstrap" --reset-offsets --group g --topic t \
      --to-latest --dry-run 2>>"$folder/errors" > "$folder/plan"
    rows=$(grep -oE 'g +t +[0-9] +0' "$folder/plan" | wc -l)
    echo "$release: $rows rows in $(grep -c '[^ ]' "$folder/plan") line(s)"
  done
)
echo "$seen"
[ "$seen" = "3.9.1: 3 rows in 1 line(s)
4.3.1: 3 rows in 4 line(s)" ]
