import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What the Java client does in transactions. Usage: BOOTSTRAP REPLICAS. */
public class Transactions {
    interface Scenario {
        void run() throws Exception;
    }

    static String bootstrap;
    static short replicas;

    public static void main(String[] args) {
        bootstrap = args[0];
        replicas = Short.parseShort(args[1]);
        play("commit-and-abort", Transactions::commitAndAbort);
        play("many-transactions", Transactions::manyTransactions);
        play("consume-transform-produce", Transactions::consumeTransformProduce);
        play("a-zombie-is-fenced", Transactions::aZombieIsFenced);
        play("describe-and-list", Transactions::describeAndList);
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

    static Properties properties(String... pairs) {
        Properties found = new Properties();
        found.put("bootstrap.servers", bootstrap);
        for (int at = 0; at < pairs.length; at += 2) {
            found.put(pairs[at], pairs[at + 1]);
        }
        return found;
    }

    static KafkaProducer<String, String> producer(String transactionalId) {
        Properties found = properties("transactional.id", transactionalId, "linger.ms", "0");
        return new KafkaProducer<>(found, new StringSerializer(), new StringSerializer());
    }

    static String created(int partitions) throws Exception {
        String name = "t-" + UUID.randomUUID();
        try (Admin admin = Admin.create(properties())) {
            admin.createTopics(List.of(new NewTopic(name, partitions, replicas))).all().get();
        }
        return name;
    }

    static List<String> read(String topic, int partitions, String isolation, int count) {
        Properties found = properties("isolation.level", isolation, "auto.offset.reset", "earliest");
        List<String> values = new ArrayList<>();
        try (var consumer = new KafkaConsumer<>(found, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> assigned = new ArrayList<>();
            for (int index = 0; index < partitions; index++) {
                assigned.add(new TopicPartition(topic, index));
            }
            consumer.assign(assigned);
            consumer.seekToBeginning(assigned);
            long deadline = System.currentTimeMillis() + 30_000;
            while (values.size() < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    values.add(record.value());
                }
            }
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                values.add(record.value());
            }
        }
        Collections.sort(values);
        return values;
    }

    static void expect(Object found, Object expected) {
        if (!found.equals(expected)) {
            throw new AssertionError(found + " instead of " + expected);
        }
    }

    static void commitAndAbort() throws Exception {
        String topic = created(2);
        try (var producer = producer("commit-" + topic)) {
            producer.initTransactions();
            for (String outcome : List.of("commit", "abort", "last")) {
                producer.beginTransaction();
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (int index = 0; index < 2; index++) {
                    sent.add(producer.send(new ProducerRecord<>(topic, index, "k", outcome + index)));
                }
                for (Future<RecordMetadata> each : sent) {
                    each.get();
                }
                if (outcome.equals("abort")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        expect(read(topic, 2, "read_committed", 4), List.of("commit0", "commit1", "last0", "last1"));
        expect(read(topic, 2, "read_uncommitted", 6).size(), 6);
    }

    static void manyTransactions() throws Exception {
        String topic = created(3);
        try (var producer = producer("many-" + topic)) {
            producer.initTransactions();
            for (int number = 0; number < 100; number++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, number % 3, "k", "v" + number));
                producer.commitTransaction();
            }
        }
        expect(read(topic, 3, "read_committed", 100).size(), 100);
    }

    static void consumeTransformProduce() throws Exception {
        String input = created(1);
        String output = created(1);
        String group = "group-" + input;
        try (var producer = producer("input-" + input)) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int number = 0; number < 10; number++) {
                producer.send(new ProducerRecord<>(input, "k", "" + number));
            }
            producer.commitTransaction();
        }
        Properties found =
                properties(
                        "group.id", group,
                        "isolation.level", "read_committed",
                        "auto.offset.reset", "earliest",
                        "enable.auto.commit", "false");
        try (var consumer = new KafkaConsumer<>(found, new StringDeserializer(), new StringDeserializer());
                var producer = producer("output-" + input)) {
            consumer.subscribe(List.of(input));
            producer.initTransactions();
            int copied = 0;
            boolean aborts = true;
            long deadline = System.currentTimeMillis() + 60_000;
            while (copied < 10 && System.currentTimeMillis() < deadline) {
                var records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(output, "k", "copy-" + record.value()));
                    positions.put(
                            new TopicPartition(input, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
                if (aborts) {
                    aborts = false;
                    producer.abortTransaction();
                    var committed = consumer.committed(Set.of(new TopicPartition(input, 0)));
                    expect(committed.get(new TopicPartition(input, 0)) == null, true);
                    consumer.seekToBeginning(consumer.assignment());
                } else {
                    producer.commitTransaction();
                    copied += records.count();
                }
            }
            var committed = consumer.committed(Set.of(new TopicPartition(input, 0)));
            expect(committed.get(new TopicPartition(input, 0)).offset(), 10L);
        }
        List<String> copies = read(output, 1, "read_committed", 10);
        expect(copies.size(), 10);
        expect(copies.get(0), "copy-0");
    }

    static void aZombieIsFenced() throws Exception {
        String topic = created(1);
        try (var zombie = producer("zombie-" + topic);
                var successor = producer("zombie-" + topic)) {
            zombie.initTransactions();
            zombie.beginTransaction();
            zombie.send(new ProducerRecord<>(topic, "k", "of the zombie")).get();
            successor.initTransactions();
            successor.beginTransaction();
            successor.send(new ProducerRecord<>(topic, "k", "of the successor"));
            successor.commitTransaction();
            try {
                zombie.send(new ProducerRecord<>(topic, "k", "late"));
                zombie.commitTransaction();
                throw new AssertionError("the zombie commits");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                // as it must be
            } catch (KafkaException error) {
                if (!(error.getCause() instanceof ProducerFencedException)
                        && !(error.getCause() instanceof InvalidProducerEpochException)) {
                    throw error;
                }
            }
        }
        expect(read(topic, 1, "read_committed", 1), List.of("of the successor"));
    }

    static void describeAndList() throws Exception {
        String topic = created(1);
        String id = "described-" + topic;
        try (var producer = producer(id);
                Admin admin = Admin.create(properties())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "k", "v")).get();
            var described = admin.describeTransactions(List.of(id)).description(id).get();
            expect(described.state(), TransactionState.ONGOING);
            expect(described.topicPartitions(), Set.of(new TopicPartition(topic, 0)));
            boolean listed =
                    admin.listTransactions().all().get().stream().anyMatch(each -> each.transactionalId().equals(id));
            expect(listed, true);
            producer.abortTransaction();
        }
    }
}
