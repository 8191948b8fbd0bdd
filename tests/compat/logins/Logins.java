import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The steps of `millstream_harness.logins` by the Java client. */
public class Logins {
    static final String SECURITY = "org.apache.kafka.common.security.";
    static final Duration LIMIT = Duration.ofSeconds(40);

    final JsonNode step;

    Logins(JsonNode step) {
        this.step = step;
    }

    String text(String field) {
        return step.get(field).asText();
    }

    Map<String, Object> config() throws Exception {
        String mechanism = text("mechanism");
        Map<String, Object> config = new HashMap<>(Map.of(
                "bootstrap.servers", text("bootstrap"),
                "ssl.truststore.type", "PEM", "ssl.truststore.location", text("ca"),
                "auto.offset.reset", "earliest", "max.block.ms", LIMIT.toMillis(),
                "key.serializer", StringSerializer.class, "value.serializer", StringSerializer.class,
                "key.deserializer", StringDeserializer.class, "value.deserializer", StringDeserializer.class));
        config.put("group.id", text("group"));
        config.put("security.protocol", mechanism.isEmpty() ? "SSL" : "SASL_SSL");
        if (mechanism.isEmpty()) {
            config.put("ssl.keystore.type", "PEM");
            config.put("ssl.keystore.location", text("certificate"));
            return config;
        }
        config.put("sasl.mechanism", mechanism);
        if (mechanism.equals("OAUTHBEARER")) {
            Path file = Files.createTempFile("token", ".jwt");
            file.toFile().deleteOnExit();
            Files.writeString(file, text("token"));
            synchronized (Logins.class) { // one property for the whole process
                String allowed = System.getProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", "");
                System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", allowed + (allowed.isEmpty() ? "" : ",") + file.toUri());
            }
            config.put("sasl.oauthbearer.token.endpoint.url", file.toUri().toString());
            config.put("sasl.login.callback.handler.class", SECURITY + "oauthbearer.OAuthBearerLoginCallbackHandler");
            config.put("sasl.jaas.config", SECURITY + "oauthbearer.OAuthBearerLoginModule required;");
        } else {
            String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
            String password = text("password").replace("\\", "\\\\").replace("\"", "\\\"");
            config.put("sasl.jaas.config", SECURITY + module + " required username=\"" + text("user") + "\" password=\"" + password + "\";");
        }
        return config;
    }

    List<String> values() {
        List<String> values = new ArrayList<>();
        step.get("values").forEach(value -> values.add(value.asText()));
        return values;
    }

    void write(long pauseMs) throws Exception {
        try (var producer = new KafkaProducer<String, String>(config())) {
            for (String value : values()) {
                producer.send(new ProducerRecord<>(text("topic"), value)).get();
                Thread.sleep(pauseMs);
            }
        } catch (ExecutionException failed) {
            throw (Exception) failed.getCause();
        }
    }

    List<String> read(int count) throws Exception {
        List<String> found = new ArrayList<>();
        try (var consumer = new KafkaConsumer<String, String>(config())) {
            consumer.subscribe(List.of(text("topic")));
            long end = System.nanoTime() + LIMIT.toNanos();
            while (found.size() < count && System.nanoTime() < end) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> found.add(record.value()));
            }
        }
        return found;
    }

    String play() {
        try {
            switch (text("action")) {
                case "write" -> write(0);
                case "session" -> write(400);
                case "read" -> read(1);
                default -> {
                    write(0);
                    List<String> found = read(values().size());
                    if (!found.equals(values())) return "read " + found;
                }
            }
            return "ok";
        } catch (Exception error) {
            return error.toString().replace('\n', ' ');
        }
    }

    public static void main(String[] args) throws Exception {
        JsonNode steps = new ObjectMapper().readTree(new File(args[0]));
        try (var threads = new Closing(Executors.newCachedThreadPool())) {
            for (JsonNode step : steps) {
                threads.pool.submit(() -> {
                    String result = new Logins(step).play();
                    System.out.println("RESULT " + step.get("name").asText() + " " + result);
                });
            }
        }
    }

    /** Waits for its threads: ExecutorService is AutoCloseable from Java 19 on only. */
    record Closing(java.util.concurrent.ExecutorService pool) implements AutoCloseable {
        public void close() throws InterruptedException {
            pool.shutdown();
            pool.awaitTermination(5, java.util.concurrent.TimeUnit.MINUTES);
        }
    }
}
