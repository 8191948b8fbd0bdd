#!/usr/bin/env bash
# Flink's Kafka connector 5.0.0-2.2 (Flink 2.2.1): sinkTo refuses a KafkaSink whose value serializer is a lambda or a method
# reference, although SerializationSchema has one method to implement, and the builder takes it.
#
# The builder takes any SerializationSchema, and build() is content with a lambda. The failure comes at sinkTo, as an
# InvalidTypesException of Flink's type extraction that names no sink and no serializer of yours: to report the lineage of the
# data, the sink asks the serializer's class for its type argument, and a lambda's class has none. A class of its own works.
#
# Seen: "class: taken", "lambda: built, then InvalidTypesException", "method reference: built, then InvalidTypesException".
#
# Needs Java 17, Maven; takes half a minute the first time. No broker is started. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > pom.xml <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>findings</groupId><artifactId>flink-kafka-sink-refuses-a-lambda</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-clients</artifactId><version>2.2.1</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-streaming-java</artifactId><version>2.2.1</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-connector-base</artifactId><version>2.2.1</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-connector-kafka</artifactId><version>5.0.0-2.2</version></dependency>
  </dependencies>
</project>
POM
mvn -B -q dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$folder/jars"

cat > Sinks.java <<'JAVA'
import java.nio.charset.StandardCharsets;
import org.apache.flink.api.common.functions.InvalidTypesException;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

public final class Sinks {
    static final class Bytes implements SerializationSchema<String> {
        @Override
        public byte[] serialize(String text) {
            return text.getBytes(StandardCharsets.UTF_8);
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void attach(String name, SerializationSchema<String> serializer) {
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers("127.0.0.1:9092")
            .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                .setTopic("t").setValueSerializationSchema(serializer).build())
            .build();
        try {
            StreamExecutionEnvironment.createLocalEnvironment(1).fromData("a", "b").sinkTo(sink);
            System.out.println(name + ": taken");
        } catch (InvalidTypesException refused) {
            System.out.println(name + ": built, then InvalidTypesException");
        }
    }

    public static void main(String[] args) {
        attach("class", new Bytes());
        attach("lambda", text -> text.getBytes(StandardCharsets.UTF_8));
        attach("method reference", Sinks::bytes);
    }
}
JAVA
seen=$(java -cp "$folder/jars/*" Sinks.java 2>"$folder/errors")
echo "$seen"
[ "$seen" = "class: taken
lambda: built, then InvalidTypesException
method reference: built, then InvalidTypesException" ]
