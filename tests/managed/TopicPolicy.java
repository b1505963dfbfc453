package managed;

import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/** Refuses topics as a service does: by the names of settings, and by the largest record. */
public class TopicPolicy implements CreateTopicPolicy {
    private Set<String> allowed;
    private Set<String> refused;
    private long bytesMax;

    @Override
    public void configure(Map<String, ?> settings) {
        allowed = names(settings, "managed.allowed");
        refused = names(settings, "managed.refused");
        bytesMax = Long.parseLong(settings.get("managed.bytes.max").toString());
    }

    private static Set<String> names(Map<String, ?> settings, String key) {
        Object text = settings.get(key);
        return text == null ? Set.of() : Set.of(text.toString().split(","));
    }

    @Override
    public void validate(RequestMetadata topic) {
        if (topic.topic().startsWith("__")) {
            return; // the broker's own
        }
        for (Map.Entry<String, String> setting : topic.configs().entrySet()) {
            String name = setting.getKey();
            if (refused.contains(name) || !(allowed.isEmpty() || allowed.contains(name))) {
                throw new PolicyViolationException("The configuration is not supported.");
            }
            if (name.equals("max.message.bytes") && Long.parseLong(setting.getValue()) > bytesMax) {
                throw new PolicyViolationException("A value is out of range.");
            }
        }
    }

    @Override
    public void close() {}
}
