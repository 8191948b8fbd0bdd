import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Produces and reads records over TLS with a client certificate; prints each version of TLS with the bytes it has read. */
public class TlsClient {
    public static void main(String[] args) throws Exception {
        for (String version : List.of("TLSv1.2", "TLSv1.3")) {
            Map<String, Object> config = Map.of(
                    "bootstrap.servers", args[0], "security.protocol", "SSL",
                    "ssl.truststore.type", "PEM", "ssl.truststore.location", args[1],
                    "ssl.keystore.type", "PEM", "ssl.keystore.location", args[2],
                    "ssl.enabled.protocols", version, "ssl.protocol", version, "max.request.size", 4_000_000);
            String topic = "java-" + version;
            try (Admin admin = Admin.create(config)) {
                admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get(60, TimeUnit.SECONDS);
            }
            long sent = 0;
            try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
                for (int size : new int[] {1, 100, 16_384, 900_000, 5}) {
                    producer.send(new ProducerRecord<>(topic, new byte[size])).get(60, TimeUnit.SECONDS);
                    sent += size;
                }
            }
            long read = 0;
            try (var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                var partition = new TopicPartition(topic, 0);
                consumer.assign(List.of(partition));
                consumer.seekToBeginning(List.of(partition));
                long end = System.nanoTime() + 60_000_000_000L;
                while (read < sent && System.nanoTime() < end) {
                    for (var record : consumer.poll(Duration.ofSeconds(1))) read += record.value().length;
                }
            }
            System.out.println(version + " " + read + " of " + sent);
        }
    }
}
