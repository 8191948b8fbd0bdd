import java.nio.charset.StandardCharsets;
import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.FlatMapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * FlinkWordCount BOOTSTRAP FOLDER [CHECKPOINT]: counts words of topic lines in topic counts, with checkpoints in the
 * folder, until it is killed. It goes on from the checkpoint, if one is named.
 */
public final class FlinkWordCount {
    /** Splits a line. */
    public static final class Split implements FlatMapFunction<String, String> {
        @Override
        public void flatMap(String line, Collector<String> words) {
            for (String word : line.split(" ")) words.collect(word);
        }
    }

    /** Adds its number to each word: "word number". */
    public static final class Count extends KeyedProcessFunction<String, String, String> {
        private transient ValueState<Integer> number;

        @Override
        public void open(OpenContext context) {
            number = getRuntimeContext().getState(new ValueStateDescriptor<>("number", Integer.class));
        }

        @Override
        public void processElement(String word, Context context, Collector<String> counts) throws Exception {
            int next = number.value() == null ? 1 : number.value() + 1;
            number.update(next);
            counts.collect(word + " " + next);
        }
    }

    /** One of the two parts of "word number"; a class, because the sink cannot tell the types of a lambda. */
    public static final class Part implements SerializationSchema<String> {
        private final int index;

        Part(int index) {
            this.index = index;
        }

        @Override
        public byte[] serialize(String count) {
            return count.split(" ")[index].getBytes(StandardCharsets.UTF_8);
        }
    }

    public static void main(String[] args) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "1 s");
        settings.setString("execution.checkpointing.dir", "file://" + args[1]);
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "1000");
        settings.setString("restart-strategy.fixed-delay.delay", "1 s");
        settings.setString("taskmanager.memory.network.min", "16m");
        settings.setString("taskmanager.memory.network.max", "16m");
        settings.setString("taskmanager.memory.managed.size", "16m");
        settings.setString("rest.bind-port", "0");
        if (args.length > 2) settings.setString("execution.state-recovery.path", args[2]);
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.createLocalEnvironment(1, settings);
        KafkaSource<String> lines = KafkaSource.<String>builder()
            .setBootstrapServers(args[0]).setTopics("lines").setGroupId("words")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setProperty("isolation.level", "read_committed")
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        KafkaSink<String> counts = KafkaSink.<String>builder()
            .setBootstrapServers(args[0])
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("words")
            .setProperty("transaction.timeout.ms", String.valueOf(Duration.ofMinutes(10).toMillis()))
            .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                .setTopic("counts")
                .setKeySerializationSchema(new Part(0))
                .setValueSerializationSchema(new Part(1))
                .build())
            .build();
        environment.fromSource(lines, WatermarkStrategy.noWatermarks(), "lines")
            .flatMap(new Split()).keyBy(word -> word).process(new Count()).sinkTo(counts);
        environment.execute("words");
    }
}
