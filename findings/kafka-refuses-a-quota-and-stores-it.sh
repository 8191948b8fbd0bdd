#!/usr/bin/env bash
# Apache Kafka 4.3.1: a request that is refused for naming an entity twice stores the first of the two quotas.
#
# One AlterClientQuotas names the same user in two entries, with different values. The response has INVALID_REQUEST
# ("Ignoring duplicate entity"). But the value of the first entry is stored: a program that takes the error for "nothing has
# changed", and gives up, leaves a quota in force that it does not know of.
#
# Seen: "refused with INVALID_REQUEST; described as 5.0".
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
  <groupId>findings</groupId><artifactId>kafka-refuses-a-quota-and-stores-it</artifactId><version>1</version><packaging>pom</packaging>
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
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))
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
java -Xmx512M -cp "$folder/jars/*" kafka.Kafka server.properties >>"$folder/log" 2>&1 &
broker=$!

# The request is built from Kafka's own protocol classes, to see the whole response.
cat > Twice.java <<'JAVA'
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.List;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.message.AlterClientQuotasRequestData;
import org.apache.kafka.common.message.AlterClientQuotasRequestData.EntityData;
import org.apache.kafka.common.message.AlterClientQuotasRequestData.EntryData;
import org.apache.kafka.common.message.AlterClientQuotasRequestData.OpData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.requests.AbstractResponse;
import org.apache.kafka.common.requests.AlterClientQuotasRequest;
import org.apache.kafka.common.requests.AlterClientQuotasResponse;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.requests.RequestUtils;

public class Twice {
    static EntryData entry(double rate) {
        return new EntryData()
            .setEntity(List.of(new EntityData().setEntityType("user").setEntityName("dora")))
            .setOps(List.of(new OpData().setKey("producer_byte_rate").setValue(rate)));
    }

    public static void main(String[] arguments) throws Exception {
        String[] address = arguments[0].split(":");
        RequestHeader header = new RequestHeader(ApiKeys.ALTER_CLIENT_QUOTAS, (short) 1, "twice", 1);
        AlterClientQuotasRequestData data = new AlterClientQuotasRequestData().setEntries(List.of(entry(5), entry(7)));
        ByteBuffer request = RequestUtils.serialize(header.data(), header.headerVersion(), data, (short) 1);
        ByteBuffer response;
        try (Socket socket = new Socket(address[0], Integer.parseInt(address[1]))) {
            DataOutputStream out = new DataOutputStream(socket.getOutputStream());
            out.writeInt(request.remaining());
            out.write(request.array(), request.arrayOffset() + request.position(), request.remaining());
            out.flush();
            DataInputStream in = new DataInputStream(socket.getInputStream());
            byte[] bytes = new byte[in.readInt()];
            in.readFully(bytes);
            response = ByteBuffer.wrap(bytes);
        }
        AlterClientQuotasResponse answer = (AlterClientQuotasResponse) AbstractResponse.parseResponse(response, header);
        Errors error = Errors.forCode(answer.data().entries().get(0).errorCode());
        Thread.sleep(5000); // until the broker knows it
        try (Admin admin = Admin.create(java.util.Map.of("bootstrap.servers", arguments[0]))) {
            Object stored = admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get()
                .getOrDefault(new ClientQuotaEntity(java.util.Map.of("user", "dora")), java.util.Map.of())
                .get("producer_byte_rate");
            System.out.println("refused with " + error + "; described as " + stored);
        }
    }
}
JAVA
for _ in $(seq 120); do
  if tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$bootstrap" --list >/dev/null; then break; fi
done
seen=$(tool Twice.java "$bootstrap") || { cat "$folder/errors" >&2; exit 1; }
echo "Apache Kafka $version: $seen"
[ "$seen" = "refused with INVALID_REQUEST; described as 5.0" ]
