import java.io.File;
import java.util.List;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

/** What Kafka makes of a log's producer snapshots. Usage: FOLDER END NOW_MS; prints a line for each producer. */
public class ProducerState {
    public static void main(String[] args) throws Exception {
        var config = new ProducerStateManagerConfig(Integer.MAX_VALUE, false);
        var state = new ProducerStateManager(
                new TopicPartition("t", 0), new File(args[0]), 60_000, config, Time.SYSTEM);
        state.truncateAndReload(0, Long.parseLong(args[1]), Long.parseLong(args[2]));
        state.activeProducers().forEach((id, entry) -> {
            var batches = List.copyOf(entry.batchMetadata());
            System.out.println("producer " + id + " epoch " + entry.producerEpoch() + " sequences "
                    + batches.get(0).firstSeq() + " to " + batches.get(batches.size() - 1).lastSeq() + " offsets "
                    + entry.firstDataOffset() + " to " + entry.lastDataOffset());
        });
    }
}
