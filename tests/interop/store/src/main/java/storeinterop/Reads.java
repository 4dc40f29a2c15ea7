package storeinterop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;

/** Everything that RocketMQ reads from a loaded store, as JSON. */
final class Reads {
    private Reads() {
    }

    static void readAll(DefaultMessageStore store, JSONObject queries, JSONObject answer) throws Exception {
        answer.put("min_physical_offset", store.getMinPhyOffset());
        answer.put("max_physical_offset", store.getMaxPhyOffset());
        JSONArray queues = new JSONArray();
        TreeMap<Long, JSONObject> messages = new TreeMap<>();
        for (Map<Integer, ConsumeQueueInterface> ofTopic : store.getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : ofTopic.values()) {
                queues.add(queue(store, queue, messages));
            }
        }
        answer.put("queues", queues);
        answer.put("messages", messages.values());
        answer.put("by_key", byKey(store, queries.getJSONArray("by_key")));
        answer.put("by_time", byTime(store, queries.getJSONArray("by_time")));
    }

    static void getAll(DefaultMessageStore store, JSONObject queries, JSONObject answer) {
        answer.put("get", get(store, queries.getJSONArray("get")));
    }

    private static JSONObject queue(DefaultMessageStore store, ConsumeQueueInterface queue, Map<Long, JSONObject> messages)
        throws Exception {
        JSONObject shown = new JSONObject(true);
        shown.put("topic", queue.getTopic());
        shown.put("queue", queue.getQueueId());
        shown.put("min", queue.getMinOffsetInQueue());
        shown.put("max", queue.getMaxOffsetInQueue());
        JSONArray entries = new JSONArray();
        for (long offset = queue.getMinOffsetInQueue(); offset < queue.getMaxOffsetInQueue(); offset++) {
            CqUnit unit = queue.get(offset);
            JSONArray entry = new JSONArray();
            entry.add(unit.getPos());
            entry.add(unit.getSize());
            entry.add(unit.getTagsCode());
            entries.add(entry);
            messages.put(unit.getPos(), message(store.lookMessageByOffset(unit.getPos())));
        }
        shown.put("entries", entries);
        return shown;
    }

    private static JSONObject message(MessageExt message) throws Exception {
        if (message == null) {
            return null;
        }
        JSONObject shown = new JSONObject(true);
        shown.put("topic", message.getTopic());
        shown.put("queue", message.getQueueId());
        shown.put("queue_offset", message.getQueueOffset());
        shown.put("physical_offset", message.getCommitLogOffset());
        shown.put("size", message.getStoreSize());
        shown.put("sys_flag", message.getSysFlag());
        shown.put("flag", message.getFlag());
        shown.put("born_timestamp", message.getBornTimestamp());
        shown.put("born_host", host(message.getBornHost()));
        shown.put("store_timestamp", message.getStoreTimestamp());
        shown.put("store_host", host(message.getStoreHost()));
        shown.put("reconsume_times", message.getReconsumeTimes());
        shown.put("prepared_transaction_offset", message.getPreparedTransactionOffset());
        shown.put("body_crc", message.getBodyCRC());
        shown.put("content_length", message.getBody().length);
        shown.put("content_sha256", hex(MessageDigest.getInstance("SHA-256").digest(message.getBody())));
        shown.put("properties", new TreeMap<>(message.getProperties()));
        shown.put("message_id", message.getMsgId());
        return shown;
    }

    private static String host(java.net.SocketAddress address) {
        java.net.InetSocketAddress socket = (java.net.InetSocketAddress) address;
        String text = socket.getAddress().getHostAddress();
        return (text.contains(":") ? "[" + text + "]" : text) + ":" + socket.getPort();
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes) {
            text.append(String.format("%02x", each));
        }
        return text.toString();
    }

    /** Questions [topic, key, begin, end, max]; answers: physical offsets in the order that RocketMQ gives them. */
    private static JSONArray byKey(DefaultMessageStore store, JSONArray questions) {
        JSONArray answers = new JSONArray();
        for (int i = 0; i < questions.size(); i++) {
            JSONArray q = questions.getJSONArray(i);
            JSONArray offsets = new JSONArray();
            QueryMessageResult result =
                store.queryMessage(q.getString(0), q.getString(1), q.getIntValue(4), q.getLongValue(2), q.getLongValue(3));
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                offsets.add(MessageDecoder.decode(buffer, false).getCommitLogOffset());
            }
            result.release();
            answers.add(offsets);
        }
        return answers;
    }

    /** Questions [topic, queue, timestamp]; answers [lower, upper]. */
    private static JSONArray byTime(DefaultMessageStore store, JSONArray questions) {
        JSONArray answers = new JSONArray();
        for (int i = 0; i < questions.size(); i++) {
            JSONArray q = questions.getJSONArray(i);
            JSONArray found = new JSONArray();
            for (BoundaryType boundary : new BoundaryType[] {BoundaryType.LOWER, BoundaryType.UPPER}) {
                found.add(store.getOffsetInQueueByTime(q.getString(0), q.getIntValue(1), q.getLongValue(2), boundary));
            }
            answers.add(found);
        }
        return answers;
    }

    /** Questions [topic, queue, offset, max]; answers status, next offset and physical offsets. */
    private static JSONArray get(DefaultMessageStore store, JSONArray questions) {
        JSONArray answers = new JSONArray();
        for (int i = 0; i < questions.size(); i++) {
            JSONArray q = questions.getJSONArray(i);
            GetMessageResult result =
                store.getMessage("group", q.getString(0), q.getIntValue(1), q.getLongValue(2), q.getIntValue(3), null);
            JSONObject found = new JSONObject(true);
            found.put("status", result.getStatus().name());
            found.put("next", result.getNextBeginOffset());
            JSONArray offsets = new JSONArray();
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                offsets.add(MessageDecoder.decode(buffer, false).getCommitLogOffset());
            }
            found.put("physical_offsets", offsets);
            result.release();
            answers.add(found);
        }
        return answers;
    }
}
