#!/usr/bin/env bash
# franz-go 1.20.7 with Apache Kafka 4.3.1: the successor of a producer that left a transaction open fails its first transaction
# with "fatal, unrecoverable" (CONCURRENT_TRANSACTIONS), and works after an abort.
#
# A new producer with the same transactional id makes the broker abort what its predecessor left. Until that is done, the broker
# answers InitProducerId with CONCURRENT_TRANSACTIONS: ask again. The Java client and librdkafka do so until their time-out.
# franz-go asks again when the error is one of the request itself, but here it is in the response: the first transaction fails,
# although nothing is wrong. Whoever treats "fatal" as the end of the client, as with a fenced producer, restarts for nothing
# after each crash.
#
# Seen: "predecessor: written, left open", "successor, first transaction: CONCURRENT_TRANSACTIONS", "successor, after an abort: committed".
#
# Needs Java 17, Maven, Python 3.11, Go and a free pair of ports; takes a minute. Fails if this changes.
set -euo pipefail
version=4.3.1
folder=$(mktemp -d)
broker=
trap 'if [ -n "$broker" ]; then kill -9 "$broker" 2>/dev/null || true; fi; rm -rf "$folder"' EXIT
cd "$folder"

cat > pom.xml <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId><artifactId>franz-go-successor-of-an-open-transaction</artifactId><version>1</version><packaging>pom</packaging>
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
mkdir program
cd program
cat > go.mod <<'MOD'
module successor

go 1.24.0

require github.com/twmb/franz-go v1.20.7
MOD
cat > main.go <<'GO'
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func producer() *kgo.Client {
	made, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.TransactionalID("id"), kgo.DefaultProduceTopic("t"))
	if err != nil {
		panic(err)
	}
	return made
}

// write begins a transaction and writes a record in it.
func write(producer *kgo.Client) error {
	if err := producer.BeginTransaction(); err != nil {
		return err
	}
	return producer.ProduceSync(context.Background(), kgo.StringRecord("x")).FirstErr()
}

func main() {
	if err := write(producer()); err != nil {
		panic(err)
	}
	fmt.Println("predecessor: written, left open")
	successor := producer()
	err := write(successor)
	if errors.Is(err, kerr.ConcurrentTransactions) {
		fmt.Println("successor, first transaction: CONCURRENT_TRANSACTIONS")
	} else {
		fmt.Println("successor, first transaction:", err)
	}
	for try := 0; err != nil && try < 100; try++ {
		if err := successor.EndTransaction(context.Background(), kgo.TryAbort); err != nil {
			panic(err)
		}
		err = write(successor)
	}
	if err == nil {
		err = successor.EndTransaction(context.Background(), kgo.TryCommit)
	}
	if err != nil {
		panic(err)
	}
	fmt.Println("successor, after an abort: committed")
}
GO
go mod tidy 2>>"$folder/errors"
seen=$(go run . "$bootstrap")
echo "$seen"
[ "$seen" = "predecessor: written, left open
successor, first transaction: CONCURRENT_TRANSACTIONS
successor, after an abort: committed" ]
