import java.time.Duration;
import java.util.Map;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** Prints a group's positions as MirrorMaker 2's own client reads them from the target: TOPIC PARTITION OFFSET. */
public class Checkpoints {
    public static void main(String[] args) throws Exception {
        Map<String, Object> client = Map.of(
                "bootstrap.servers", args[0],
                "replication.policy.class", "org.apache.kafka.connect.mirror.IdentityReplicationPolicy");
        RemoteClusterUtils.translateOffsets(client, "source", args[1], Duration.ofSeconds(20))
                .forEach((at, found) -> System.out.println(at.topic() + " " + at.partition() + " " + found.offset()));
    }
}
