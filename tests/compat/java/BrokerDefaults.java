import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.DynamicBrokerConfig;

/** Prints name, default and "dynamic" or "fixed" of every broker key that Kafka documents, with tabs in between. */
public class BrokerDefaults {
    public static void main(String[] args) {
        var dynamic = DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS;
        kafka.server.KafkaConfig.configDef().configKeys().values().stream()
                .filter(key -> !key.internalConfig)
                .forEach(key -> System.out.println(String.join("\t", key.name,
                        key.defaultValue == ConfigDef.NO_DEFAULT_VALUE ? "(none)"
                                : String.valueOf(ConfigDef.convertToString(key.defaultValue, key.type)),
                        dynamic.contains(key.name) ? "dynamic" : "fixed")));
    }
}
