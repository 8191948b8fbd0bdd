import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What the Java client must be refused at once. Usage: as JavaClient. */
public class Refusals {
    interface Scenario {
        void run() throws Exception;
    }

    static Properties properties = new Properties();

    public static void main(String[] args) {
        properties.put("bootstrap.servers", args[0]);
        play("no-writes-to-a-mirror", Refusals::noWritesToAMirror);
        play("no-consumer-protocol", Refusals::noConsumerProtocol);
        System.exit(0);
    }

    static void play(String name, Scenario scenario) {
        try {
            scenario.run();
            System.out.println("PASS " + name);
        } catch (Throwable why) {
            System.out.println("FAIL " + name + ": " + why);
        }
    }

    static void noWritesToAMirror() throws Exception {
        String source = "elsewhere/AAAAAAAAQACAAAAAAAAAAQ";
        try (Admin admin = Admin.create(properties)) {
            NewTopic topic = new NewTopic("a-mirror", 1, (short) 1).configs(Map.of("millstream.mirror.source", source));
            admin.createTopics(List.of(topic)).all().get();
        }
        for (boolean idempotent : new boolean[] {true, false}) {
            Properties settings = new Properties();
            settings.putAll(properties);
            settings.put("enable.idempotence", idempotent);
            long begun = System.currentTimeMillis();
            try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
                producer.send(new ProducerRecord<>("a-mirror", "v")).get();
                throw new AssertionError("it writes to a mirror");
            } catch (ExecutionException expected) {
                if (!(expected.getCause() instanceof PolicyViolationException)
                        || !expected.getMessage().contains("'a-mirror' is a read-only mirror of " + source)
                        || System.currentTimeMillis() - begun > 20_000) {
                    throw expected;
                }
            }
        }
    }

    static void noConsumerProtocol() {
        properties.put("group.id", "g");
        properties.put("group.protocol", "consumer");
        try (var consumer = new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("t"));
            long deadline = System.currentTimeMillis() + 60_000;
            while (System.currentTimeMillis() < deadline) {
                consumer.poll(Duration.ofMillis(100));
            }
            throw new AssertionError("it waits for a group");
        } catch (UnsupportedVersionException expected) {
            return;
        }
    }
}
