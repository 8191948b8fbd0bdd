import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/** Reads messages by Kafka's own classes, a line each: `UpdateMetadataRequest 7 HEX`. Answers `HEX JSON`. */
public class BrokerMessages {
    public static void main(String[] args) throws Exception {
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] parts = line.split(" ");
            String name = "org.apache.kafka.common.message." + parts[0] + "Data";
            short version = Short.parseShort(parts[1]);
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(parts[2]));
            Message message = (Message) Class.forName(name).getDeclaredConstructor().newInstance();
            message.read(new ByteBufferAccessor(bytes), version);
            if (bytes.hasRemaining()) {
                throw new IllegalStateException(line + ": " + bytes.remaining() + " bytes are left");
            }
            ByteBuffer written = MessageUtil.toByteBuffer(message, version);
            byte[] copy = new byte[written.remaining()];
            written.get(copy);
            Method json = Class.forName(name + "JsonConverter").getMethod("write", message.getClass(), short.class);
            System.out.println(HexFormat.of().formatHex(copy) + " " + json.invoke(null, message, version));
        }
    }
}
