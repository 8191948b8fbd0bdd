/** Prints the name of every broker key that Kafka documents. */
public class BrokerKeys {
    public static void main(String[] args) {
        kafka.server.KafkaConfig.configDef().configKeys().values().stream()
                .filter(key -> !key.internalConfig)
                .forEach(key -> System.out.println(key.name));
    }
}
