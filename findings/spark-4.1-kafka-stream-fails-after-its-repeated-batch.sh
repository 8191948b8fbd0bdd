#!/usr/bin/env bash
# Spark 4.1.1: a Kafka stream that repeats the batch of a failed run processes it, and then fails with a NullPointerException.
#
# A stream with the trigger availableNow fails in its batch: the sink was away. Started again with the same checkpoint, it
# repeats the batch, and the sink gets all rows. Then the query ends with a NullPointerException from the source's metrics,
# because the newest offsets were not read in a run that only repeats. A third start ends well: the batch was committed. So a
# scheduler reports a failed run whose rows are in the table, and one that cleans up after failures removes good rows.
# Spark 4.0.0 ends the second run well, and so does 4.1.1 with the Kafka source of 4.1.3, which differs in this alone
# (SPARK-55271).
#
# Seen: "4.0.0 with 4.0.0: first failed, rows 10, second ended well, third ended well",
# "4.1.1 with 4.1.1: first failed, rows 10, second failed: NullPointerException, third ended well", and for "4.1.1 with 4.1.3"
# as for 4.0.0.
#
# Needs Java 17, Maven, Python 3.11 and a free pair of ports; installs 900 MB, takes some minutes. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
broker=
trap 'if [ -n "$broker" ]; then kill -9 "$broker" 2>/dev/null || true; fi; rm -rf "$folder"' EXIT
cd "$folder"

# fetch FOLDER GROUP:ARTIFACT:VERSION: the jar and what it needs
fetch() {
  IFS=: read -r group artifact version <<<"$2"
  cat > pom.xml <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>$group</groupId><artifactId>$artifact</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
POM
  mvn -B -q dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$folder/$1"
}
fetch kafka org.apache.kafka:kafka_2.13:4.3.1

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
storage() { java -cp "$folder/kafka/*" kafka.tools.StorageTool "$@" 2>>errors; }
storage format --cluster-id "$(storage random-uuid)" --config server.properties >/dev/null
java -Xmx512M -cp "$folder/kafka/*" kafka.Kafka server.properties >log 2>&1 &
broker=$!
until (: <"/dev/tcp/127.0.0.1/$client") 2>/dev/null; do kill -0 "$broker"; sleep 0.5; done

cat > stream.py <<'PY'
import sys

from pyspark.sql import DataFrame, SparkSession

bootstrap, jars, source_version = sys.argv[1:]
name = f"numbers-{source_version}"
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.jars", jars).getOrCreate()
kafka = {"kafka.bootstrap.servers": bootstrap}
numbers = spark.range(10).selectExpr("cast(id as string) as value")
numbers.write.format("kafka").options(**kafka, topic=name).save()
seen = []


def refuses(frame: DataFrame, batch: int) -> None:
    raise RuntimeError("the sink is away")


def takes(frame: DataFrame, batch: int) -> None:
    seen.append(f"rows {frame.count()}")


for start, sink in (("first", refuses), ("second", takes), ("third", takes)):
    source = spark.readStream.format("kafka").options(**kafka, subscribe=name, startingOffsets="earliest").load()
    writer = source.writeStream.option("checkpointLocation", f"checkpoint-{name}").trigger(availableNow=True)
    try:
        writer.foreachBatch(sink).start().awaitTermination()
        seen.append(f"{start} ended well")
    except Exception as error:
        null = "because the return value of" in str(error) and "is null" in str(error)
        seen.append(f"{start} failed" + (": NullPointerException" if null else ""))
print(f"{spark.version} with {source_version}: {', '.join(seen)}")
PY
for version in 4.0.0 4.1.1; do
  fetch "source-$version" "org.apache.spark:spark-sql-kafka-0-10_2.13:$version"
  python3 -m venv "venv-$version"
  "venv-$version/bin/pip" install --quiet --disable-pip-version-check setuptools "pyspark==$version"
done
mkdir source-4.1.3
cp source-4.1.1/* source-4.1.3
rm source-4.1.3/spark-sql-kafka*
mvn -B -q dependency:copy -Dartifact=org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3 -DoutputDirectory="$folder/source-4.1.3"

for pair in 4.0.0:4.0.0 4.1.1:4.1.1 4.1.1:4.1.3; do
  IFS=: read -r version source <<<"$pair"
  jars=
  for jar in "source-$source"/*.jar; do
    case $jar in */spark-sql-kafka* | */spark-token* | */kafka-clients* | */commons-pool2*) jars=$jars,$folder/$jar ;; esac
  done
  "venv-$version/bin/python" stream.py "127.0.0.1:$client" "${jars#,}" "$source" 2>>errors | tee -a seen
done
[ "$(cat seen)" = "4.0.0 with 4.0.0: first failed, rows 10, second ended well, third ended well
4.1.1 with 4.1.1: first failed, rows 10, second failed: NullPointerException, third ended well
4.1.1 with 4.1.3: first failed, rows 10, second ended well, third ended well" ]
