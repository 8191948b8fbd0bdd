#!/usr/bin/env bash
# Apache Kafka 4.3.1: a comma behind the last item is refused in cleanup.policy, and accepted in the lists of replicas.
#
# A list of names may have no empty item: "compact," is refused. "0:1," is a list of the same type, and is stored as
# it is, comma included. Also, the response to CreateTopics shows a list with duplicates as it was sent, while the topic has
# each item once: a tool that compares this response with DescribeConfigs sees a change that was never made.
#
# Seen: "compact, refused; 0:1, stored as 0:1,; created with delete,compact,delete, then described as delete,compact".
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
  <groupId>findings</groupId><artifactId>kafka-lists-with-a-last-comma</artifactId><version>1</version><packaging>pom</packaging>
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

cat > Lists.java <<'JAVA'
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.config.ConfigResource;

public class Lists {
    static Admin admin;

    static String described(String topic, String key) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(key).value();
    }

    static String created(String topic, String key, String value) throws Exception {
        NewTopic wanted = new NewTopic(topic, Optional.of(1), Optional.empty()).configs(Map.of(key, value));
        try {
            return admin.createTopics(List.of(wanted)).config(topic).get().get(key).value();
        } catch (ExecutionException error) {
            return "refused";
        }
    }

    public static void main(String[] arguments) throws Exception {
        admin = Admin.create(Map.of("bootstrap.servers", arguments[0]));
        String replicas = "leader.replication.throttled.replicas";
        String comma = created("comma", "cleanup.policy", "compact,");
        created("replicas", replicas, "0:1,");
        String twice = created("twice", "cleanup.policy", "delete,compact,delete");
        Thread.sleep(5000); // until the broker knows them
        System.out.println("compact, " + comma + "; 0:1, stored as " + described("replicas", replicas) + "; created with " + twice
            + ", then described as " + described("twice", "cleanup.policy"));
        admin.close();
    }
}
JAVA
start
seen=$(tool Lists.java "$bootstrap")
echo "Apache Kafka $version: $seen"
[ "$seen" = "compact, refused; 0:1, stored as 0:1,; created with delete,compact,delete, then described as delete,compact" ]
