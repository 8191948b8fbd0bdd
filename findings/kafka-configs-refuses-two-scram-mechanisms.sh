#!/usr/bin/env bash
# Apache Kafka 4.3.1: kafka-configs cannot set both SCRAM mechanisms of a user in one command, as KIP-84 shows it.
#
# KIP-84 introduced SCRAM with one --add-config that has SCRAM-SHA-256=[…],SCRAM-SHA-512=[…], and it worked with ZooKeeper. Since
# credentials are set by AlterUserScramCredentials, which takes one change of a user in a request, the same command is refused: the
# tool sends both in one request. Deleting both at once is refused, too. Nothing is stored or deleted. One command for
# each mechanism works.
#
# Seen: "both at once: DuplicateResourceException, none stored; one by one: both stored; both deleted at once:
# DuplicateResourceException, both stay".
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
  <groupId>findings</groupId><artifactId>two-mechanisms</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
POM
mvn -B -q -Dstyle.color=never dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$folder/jars"
java_of() { java -Xmx256M -cp "$folder/jars/*" "$@"; }

read -r client controller < <(python3 - <<'PY'
import socket
sockets = [socket.socket() for _ in range(2)]
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))
PY
)
cat > server.properties <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
listeners=PLAINTEXT://127.0.0.1:$client,CONTROLLER://127.0.0.1:$controller
controller.listener.names=CONTROLLER
log.dirs=$folder/data
PROPERTIES
id=$(java_of kafka.tools.StorageTool random-uuid 2>>errors)
java_of kafka.tools.StorageTool format --cluster-id "$id" --config server.properties >/dev/null 2>>errors
java -Xmx512M -cp "$folder/jars/*" kafka.Kafka server.properties >>log 2>&1 &
broker=$!

user() {
  java_of kafka.admin.ConfigCommand --bootstrap-server "127.0.0.1:$client" --entity-type users --entity-name alice "$@" 2>&1 || true
}
stored() { user --describe | { grep -o 'SCRAM-SHA-[0-9]*=' || true; } | sort -u | wc -l; }
refusal() { [[ $1 == *DuplicateResourceException* ]] && echo DuplicateResourceException || echo "no refusal"; }

until java_of kafka.admin.ConfigCommand --bootstrap-server "127.0.0.1:$client" --entity-type users --describe >/dev/null 2>&1; do
  sleep 1
done
at_once=$(user --alter --add-config 'SCRAM-SHA-256=[password=secret],SCRAM-SHA-512=[password=secret]')
after=$(stored)
user --alter --add-config 'SCRAM-SHA-256=[password=secret]' >/dev/null
user --alter --add-config 'SCRAM-SHA-512=[password=secret]' >/dev/null
one_by_one=$(stored)
deleted=$(user --alter --delete-config 'SCRAM-SHA-256,SCRAM-SHA-512')
left=$(stored)
words() { case $1 in 0) echo "none stored" ;; 2) echo "both stored" ;; *) echo "$1 stored" ;; esac; }
seen="both at once: $(refusal "$at_once"), $(words "$after"); one by one: $(words "$one_by_one"); both deleted at once: \
$(refusal "$deleted"), $([ "$left" = 2 ] && echo both stay || echo "$left left")"
echo "$seen"
[ "$seen" = "both at once: DuplicateResourceException, none stored; one by one: both stored; both deleted at once: \
DuplicateResourceException, both stay" ]
