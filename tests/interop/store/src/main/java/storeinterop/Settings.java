package storeinterop;

import com.alibaba.fastjson.JSONObject;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.ConsumerOffsetSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.body.SubscriptionGroupWrapper;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;

/** config/*.json as RocketMQ's own classes read it. */
final class Settings {
    private Settings() {
    }

    /** What RocketMQ's schedule service decodes its progress into. */
    public static final class DelayOffsets extends RemotingSerializable {
        private ConcurrentMap<Integer, Long> offsetTable;

        public ConcurrentMap<Integer, Long> getOffsetTable() {
            return offsetTable;
        }

        public void setOffsetTable(ConcurrentMap<Integer, Long> offsetTable) {
            this.offsetTable = offsetTable;
        }
    }

    static void readAll(Path config, JSONObject answer) throws Exception {
        answer.put("topics", read(config, "topics.json", TopicConfigSerializeWrapper.class));
        answer.put("groups", read(config, "subscriptionGroup.json", SubscriptionGroupWrapper.class));
        answer.put("consumer_offsets", read(config, "consumerOffset.json", ConsumerOffsetSerializeWrapper.class));
        answer.put("delay_offsets", read(config, "delayOffset.json", DelayOffsets.class));
    }

    private static <T> T read(Path config, String name, Class<T> type) throws Exception {
        Path path = config.resolve(name);
        return Files.exists(path) ? RemotingSerializable.fromJson(Files.readString(path), type) : null;
    }
}
