import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.errors.TransactionalIdAuthorizationException;
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
        play("no-transactions", Refusals::noTransactions);
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

    static void noTransactions() {
        properties.put("transactional.id", "t");
        try (var producer = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            throw new AssertionError("it has transactions");
        } catch (TransactionalIdAuthorizationException expected) {
            return;
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
