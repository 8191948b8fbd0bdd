import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Utils;

/**
 * What the Java client must be able to do, one scenario after the other in one process.
 *
 * <p>It uses only what clients from 3.9 to 4.1 have. Usage: java -cp JARS JavaClient.java BOOTSTRAP; prints
 * "PASS name" or "FAIL name: why" a scenario.
 */
public class JavaClient {
    static final long BASE_TIMESTAMP = 1_700_000_000_000L;
    static final long DEADLINE_MS = 30_000;
    static final int COUNT = 200;
    static String bootstrap;
    static Admin admin;
    static int topics = 0;

    interface Scenario {
        void run() throws Exception;
    }

    public static void main(String[] args) {
        bootstrap = args[0];
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
            scenarios.put("codec-" + codec, () -> codec(codec));
        scenarios.put("keyed", JavaClient::keyed);
        scenarios.put("idempotent-pipelined", JavaClient::idempotentPipelined);
        scenarios.put("auto-created", JavaClient::autoCreated);
        scenarios.put("resume", JavaClient::resume);
        scenarios.put("share-range", () -> share(RangeAssignor.class));
        scenarios.put("share-cooperative-sticky", () -> share(CooperativeStickyAssignor.class));
        scenarios.put("static-member", JavaClient::staticMember);
        scenarios.put("offsets-by-timestamp", JavaClient::offsetsByTimestamp);
        scenarios.put("seek-and-pause", JavaClient::seekAndPause);
        scenarios.put("offset-out-of-range", JavaClient::offsetOutOfRange);
        scenarios.put("too-large", JavaClient::tooLarge);
        scenarios.put("admin-topics", JavaClient::adminTopics);
        scenarios.put("admin-configs", JavaClient::adminConfigs);
        scenarios.put("admin-offsets", JavaClient::adminOffsets);
        scenarios.put("admin-groups", JavaClient::adminGroups);
        scenarios.put("admin-cluster", JavaClient::adminCluster);
        scenarios.put("admin-errors", JavaClient::adminErrors);
        try (Admin client = Admin.create(Map.of("bootstrap.servers", bootstrap, "default.api.timeout.ms", "20000", "request.timeout.ms", "10000"))) {
            admin = client;
            scenarios.forEach(JavaClient::attempt);
        }
    }

    static void attempt(String name, Scenario scenario) {
        try {
            scenario.run();
            System.out.println("PASS " + name);
        } catch (Throwable error) {
            StackTraceElement at = Arrays.stream(error.getStackTrace())
                .filter(frame -> frame.getClassName().startsWith("JavaClient") && !frame.getMethodName().startsWith("check"))
                .findFirst().orElse(null);
            System.out.println("FAIL " + name + ": " + error + " at " + at);
        }
    }

    // --- helpers ---------------------------------------------------------------------------------

    static void check(boolean holds, Object what) {
        if (!holds) throw new AssertionError(what);
    }

    static void checkEquals(Object expected, Object found) {
        check(Objects.deepEquals(expected, found), "expected " + expected + ", found " + found);
    }

    static <E extends Exception> E checkFails(Class<E> kind, Future<?> future) throws Exception {
        try {
            future.get(DEADLINE_MS, TimeUnit.MILLISECONDS);
        } catch (ExecutionException error) {
            check(kind.isInstance(error.getCause()), "expected " + kind.getSimpleName() + ", found " + error.getCause());
            return kind.cast(error.getCause());
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", found none");
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String create(String name, int partitions, Map<String, String> configs) throws Exception {
        String topic = "java-" + name + "-" + ProcessHandle.current().pid() + "-" + ++topics;
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(configs))).all().get();
        return topic;
    }

    static String create(String name, int partitions) throws Exception {
        return create(name, partitions, Map.of());
    }

    static KafkaProducer<byte[], byte[]> producer(Object... settings) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("linger.ms", "5");
        for (int i = 0; i < settings.length; i += 2) config.put(settings[i], settings[i + 1]);
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group, Object... settings) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        if (group != null) config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("heartbeat.interval.ms", "100");
        for (int i = 0; i < settings.length; i += 2) config.put(settings[i], settings[i + 1]);
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static ProducerRecord<byte[], byte[]> sample(String topic, int i) {
        byte[] key = i % 10 == 9 ? null : bytes("key-" + i % 7);
        byte[] value = i % 25 == 23 ? null : bytes("value-" + i + " " + "x".repeat(i * 3));
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, null, BASE_TIMESTAMP + i, key, value);
        if (i % 3 == 0) record.headers().add("trace", bytes("" + i)).add("empty", new byte[0]).add("null", null);
        return record;
    }

    static List<RecordMetadata> produce(String topic, Object... settings) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            for (int i = 0; i < COUNT; i++) sent.add(producer.send(sample(topic, i)));
        }
        List<RecordMetadata> acknowledged = new ArrayList<>();
        for (Future<RecordMetadata> future : sent) acknowledged.add(future.get());
        return acknowledged;
    }

    static List<ConsumerRecord<byte[], byte[]>> take(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> taken = new ArrayList<>();
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (taken.size() < count) {
            check(System.currentTimeMillis() < deadline, taken.size() + " of " + count + " records in time");
            consumer.poll(Duration.ofMillis(50)).forEach(taken::add);
        }
        return taken;
    }

    static List<Set<Integer>> settle(List<KafkaConsumer<byte[], byte[]>> consumers, Predicate<List<Set<Integer>>> accept) {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (true) {
            List<Set<Integer>> owned = new ArrayList<>();
            for (KafkaConsumer<byte[], byte[]> consumer : consumers) {
                consumer.poll(Duration.ofMillis(20));
                Set<Integer> parts = new HashSet<>();
                consumer.assignment().forEach(part -> parts.add(part.partition()));
                owned.add(parts);
            }
            if (accept.test(owned)) return owned;
            check(System.currentTimeMillis() < deadline, "assignments are still " + owned);
        }
    }

    static boolean halves(List<Set<Integer>> owned) {
        Set<Integer> union = new HashSet<>(owned.get(0));
        union.addAll(owned.get(1));
        return union.equals(Set.of(0, 1, 2, 3)) && owned.get(0).size() == 2 && owned.get(1).size() == 2;
    }

    // --- producing and consuming -----------------------------------------------------------------

    static void codec(String codec) throws Exception {
        String topic = create(codec, 1);
        produce(topic, "compression.type", codec);
        try (KafkaConsumer<byte[], byte[]> reader = consumer(null)) {
            reader.assign(List.of(new TopicPartition(topic, 0)));
            int i = 0;
            for (ConsumerRecord<byte[], byte[]> record : take(reader, COUNT)) {
                ProducerRecord<byte[], byte[]> sent = sample(topic, i);
                checkEquals((long) i, record.offset());
                checkEquals(sent.key(), record.key());
                checkEquals(sent.value(), record.value());
                checkEquals(sent.timestamp(), record.timestamp());
                List<Header> wrote = List.of(sent.headers().toArray()), read = List.of(record.headers().toArray());
                checkEquals(wrote.toString(), read.toString());
                i++;
            }
            checkEquals(COUNT, i);
        }
    }

    static void keyed() throws Exception {
        String topic = create("keyed", 4);
        List<RecordMetadata> acknowledged = produce(topic);
        for (int i = 0; i < COUNT; i++) {
            byte[] key = sample(topic, i).key();
            if (key != null) checkEquals(Utils.toPositive(Utils.murmur2(key)) % 4, acknowledged.get(i).partition());
        }
        try (KafkaConsumer<byte[], byte[]> reader = consumer("java-keyed-reader-" + topic)) {
            reader.subscribe(List.of(topic));
            checkEquals(COUNT, take(reader, COUNT).size());
        }
    }

    /** Small batches, five requests in flight: the broker checks every sequence. */
    static void idempotentPipelined() throws Exception {
        String topic = create("idempotent", 1);
        List<RecordMetadata> acknowledged =
            produce(topic, "enable.idempotence", "true", "acks", "all", "batch.size", "1500", "linger.ms", "0");
        for (int i = 0; i < COUNT; i++) checkEquals((long) i, acknowledged.get(i).offset());
    }

    static void autoCreated() throws Exception {
        String topic = "java-auto-" + ProcessHandle.current().pid();
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            checkEquals(0L, producer.send(new ProducerRecord<>(topic, bytes("first"))).get().offset());
        }
    }

    static void resume() throws Exception {
        String topic = create("resume", 1), group = "group-" + topic;
        produce(topic);
        TopicPartition part = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> first = consumer(group, "max.poll.records", "50")) {
            first.subscribe(List.of(topic));
            take(first, 50);
            first.commitSync(Map.of(part, new OffsetAndMetadata(50, "half-way")));
        }
        try (KafkaConsumer<byte[], byte[]> second = consumer(group)) {
            OffsetAndMetadata committed = second.committed(Set.of(part)).get(part);
            checkEquals(50L, committed.offset());
            checkEquals("half-way", committed.metadata());
            second.subscribe(List.of(topic));
            checkEquals(50L, take(second, 1).get(0).offset());
        }
    }

    static void share(Class<?> assignor) throws Exception {
        String topic = create("share", 4), group = "group-" + topic;
        Object[] strategy = {"partition.assignment.strategy", assignor.getName()};
        try (KafkaConsumer<byte[], byte[]> first = consumer(group, strategy)) {
            first.subscribe(List.of(topic));
            settle(List.of(first), owned -> owned.get(0).size() == 4);
            try (KafkaConsumer<byte[], byte[]> second = consumer(group, strategy)) {
                second.subscribe(List.of(topic));
                settle(List.of(first, second), JavaClient::halves);
            }
            settle(List.of(first), owned -> owned.get(0).size() == 4);
        }
    }

    static void staticMember() throws Exception {
        String topic = create("static", 4), group = "group-" + topic;
        try (KafkaConsumer<byte[], byte[]> first = consumer(group, "group.instance.id", "one")) {
            first.subscribe(List.of(topic));
            List<Set<Integer>> before;
            try (KafkaConsumer<byte[], byte[]> second = consumer(group, "group.instance.id", "two")) {
                second.subscribe(List.of(topic));
                before = settle(List.of(first, second), JavaClient::halves);
            }
            int generation = first.groupMetadata().generationId();
            try (KafkaConsumer<byte[], byte[]> again = consumer(group, "group.instance.id", "two")) {
                again.subscribe(List.of(topic));
                checkEquals(before, settle(List.of(first, again), owned -> owned.get(1).size() == 2));
                checkEquals(generation, again.groupMetadata().generationId());
                checkEquals(generation, first.groupMetadata().generationId());
            }
        }
    }

    static void offsetsByTimestamp() throws Exception {
        String topic = create("times", 1);
        produce(topic, "batch.size", "2048");
        TopicPartition part = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> reader = consumer(null)) {
            OffsetAndTimestamp found = reader.offsetsForTimes(Map.of(part, BASE_TIMESTAMP + 77)).get(part);
            checkEquals(77L, found.offset());
            checkEquals(BASE_TIMESTAMP + 77, found.timestamp());
            checkEquals(null, reader.offsetsForTimes(Map.of(part, BASE_TIMESTAMP + COUNT)).get(part));
            checkEquals(Map.of(part, 0L), reader.beginningOffsets(List.of(part)));
            checkEquals(Map.of(part, (long) COUNT), reader.endOffsets(List.of(part)));
        }
    }

    static void seekAndPause() throws Exception {
        String topic = create("seek", 2);
        produce(topic);
        TopicPartition zero = new TopicPartition(topic, 0), one = new TopicPartition(topic, 1);
        try (KafkaConsumer<byte[], byte[]> reader = consumer(null, "max.poll.records", "5")) {
            reader.assign(List.of(zero, one));
            reader.pause(List.of(one));
            reader.seek(zero, 7);
            checkEquals(7L, take(reader, 1).get(0).offset());
            reader.resume(List.of(one));
            reader.pause(List.of(zero));
            checkEquals(1, take(reader, 1).get(0).partition());
        }
    }

    static void offsetOutOfRange() throws Exception {
        String topic = create("range", 1);
        produce(topic);
        try (KafkaConsumer<byte[], byte[]> reader = consumer(null, "auto.offset.reset", "none")) {
            TopicPartition part = new TopicPartition(topic, 0);
            reader.assign(List.of(part));
            reader.seek(part, 10_000);
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (System.currentTimeMillis() < deadline) {
                try {
                    reader.poll(Duration.ofMillis(50));
                } catch (org.apache.kafka.clients.consumer.InvalidOffsetException expected) {
                    return;
                }
            }
            throw new AssertionError("no OffsetOutOfRangeException");
        }
    }

    static void tooLarge() throws Exception {
        String topic = create("large", 1, Map.of("max.message.bytes", "2000"));
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            checkFails(RecordTooLargeException.class, producer.send(new ProducerRecord<>(topic, new byte[3000])));
            checkEquals(0L, producer.send(new ProducerRecord<>(topic, new byte[1000])).get().offset());
        }
    }

    // --- administration --------------------------------------------------------------------------

    static void adminTopics() throws Exception {
        String topic = create("admin", 3);
        TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        checkEquals(3, described.partitions().size());
        check(!described.isInternal(), "isInternal");
        described.partitions().forEach(part -> checkEquals(1, part.leader().id()));
        ListTopicsResult listed = admin.listTopics();
        checkEquals(described.topicId(), listed.namesToListings().get().get(topic).topicId());
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
        checkEquals(5, admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
        checkFails(InvalidPartitionsException.class, admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all());
        checkFails(TopicExistsException.class, admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all());
        admin.deleteTopics(List.of(topic)).all().get();
        check(!admin.listTopics().names().get().contains(topic), "deleted topic is listed");
    }

    static void adminConfigs() throws Exception {
        String topic = create("configs", 1, Map.of("retention.ms", "3600000"));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        checkEquals("3600000", config.get("retention.ms").value());
        checkEquals(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, config.get("retention.ms").source());
        checkEquals(ConfigEntry.ConfigSource.DEFAULT_CONFIG, config.get("cleanup.policy").source());
        checkEquals("delete", config.get("cleanup.policy").value());
        admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("segment.bytes", "1048576"), AlterConfigOp.OpType.SET),
            new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE),
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND)))).all().get();
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        do { // a broker of a cluster hears of it a moment later
            config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        } while (!"1048576".equals(config.get("segment.bytes").value()) && System.currentTimeMillis() < deadline);
        checkEquals("1048576", config.get("segment.bytes").value());
        checkEquals("604800000", config.get("retention.ms").value());
        checkEquals("delete,compact", config.get("cleanup.policy").value());
        checkFails(InvalidConfigurationException.class, admin.incrementalAlterConfigs(Map.of(resource,
            List.of(new AlterConfigOp(new ConfigEntry("no.such.key", "1"), AlterConfigOp.OpType.SET)))).all());
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        check(admin.describeConfigs(List.of(broker)).all().get().get(broker).get("log.dirs") != null, "broker's log.dirs");
    }

    static void adminOffsets() throws Exception {
        String topic = create("offsets", 1);
        produce(topic);
        TopicPartition part = new TopicPartition(topic, 0);
        checkEquals(0L, offset(part, OffsetSpec.earliest()));
        checkEquals((long) COUNT, offset(part, OffsetSpec.latest()));
        checkEquals(COUNT - 1L, offset(part, OffsetSpec.maxTimestamp()));
        checkEquals(50L, offset(part, OffsetSpec.forTimestamp(BASE_TIMESTAMP + 50)));
        DeletedRecords deleted =
            admin.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(60))).lowWatermarks().get(part).get();
        checkEquals(60L, deleted.lowWatermark());
        checkEquals(60L, offset(part, OffsetSpec.earliest()));
        checkFails(OffsetOutOfRangeException.class,
            admin.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(10_000))).all());
    }

    static long offset(TopicPartition part, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(part, spec)).all().get().get(part).offset();
    }

    static void adminGroups() throws Exception {
        String topic = create("groups", 2), group = "group-" + topic;
        TopicPartition part = new TopicPartition(topic, 0), other = new TopicPartition(topic, 1);
        produce(topic);
        try (KafkaConsumer<byte[], byte[]> member = consumer(group, "client.id", "the-member")) {
            member.subscribe(List.of(topic));
            take(member, COUNT);
            member.commitSync();
            ConsumerGroupDescription described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            checkEquals("Stable", described.state().toString());
            MemberDescription only = described.members().iterator().next();
            checkEquals("the-member", only.clientId());
            checkEquals(Set.of(part, other), only.assignment().topicPartitions());
            checkFails(GroupNotEmptyException.class, admin.deleteConsumerGroups(List.of(group)).all());
        }
        check(admin.listConsumerGroups().all().get().stream().anyMatch(one -> one.groupId().equals(group)), "group is not listed");
        admin.alterConsumerGroupOffsets(group, Map.of(part, new OffsetAndMetadata(5))).all().get();
        checkEquals(5L, admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(part).offset());
        admin.deleteConsumerGroupOffsets(group, Set.of(part)).all().get();
        check(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(part) == null, "offset is left");
        admin.deleteConsumerGroups(List.of(group)).all().get();
        checkFails(GroupIdNotFoundException.class, admin.deleteConsumerGroups(List.of(group)).all());
    }

    static void adminCluster() throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        checkEquals(1, cluster.nodes().get().size());
        checkEquals(1, cluster.controller().get().id());
        check(!cluster.clusterId().get().isEmpty(), "cluster id");
        String topic = create("cluster", 1);
        produce(topic);
        long size = 0;
        for (LogDirDescription dir : admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).values()) {
            ReplicaInfo replica = dir.replicaInfos().get(new TopicPartition(topic, 0));
            if (replica != null) size += replica.size();
        }
        check(size > 1000, "size of the log is " + size);
        checkEquals(Map.of(), admin.listPartitionReassignments().reassignments().get());
        checkFails(SecurityDisabledException.class,
            admin.describeAcls(org.apache.kafka.common.acl.AclBindingFilter.ANY).values());
    }

    static void adminErrors() throws Exception {
        checkFails(UnknownTopicOrPartitionException.class, admin.describeTopics(List.of("no-such-topic")).allTopicNames());
        checkFails(UnknownTopicOrPartitionException.class, admin.deleteTopics(List.of("no-such-topic")).all());
        checkFails(InvalidTopicException.class, admin.createTopics(List.of(new NewTopic("a b", 1, (short) 1))).all());
        checkFails(InvalidPartitionsException.class, admin.createTopics(List.of(new NewTopic("zero", 0, (short) 1))).all());
        checkFails(InvalidReplicationFactorException.class, admin.createTopics(List.of(new NewTopic("many", 1, (short) 3))).all());
        checkFails(InvalidConfigurationException.class,
            admin.createTopics(List.of(new NewTopic("odd", 1, (short) 1).configs(Map.of("no.such.key", "1")))).all());
        checkFails(InvalidConfigurationException.class,
            admin.createTopics(List.of(new NewTopic("odd", 1, (short) 1).configs(Map.of("retention.ms", "soon")))).all());
    }
}
