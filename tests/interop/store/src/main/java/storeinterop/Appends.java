package storeinterop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/** Puts messages as a broker does that has checked and completed what a client sent. */
final class Appends {
    private Appends() {
    }

    static JSONArray putAll(DefaultMessageStore store, JSONArray messages) {
        JSONArray results = new JSONArray();
        for (int i = 0; i < messages.size(); i++) {
            PutMessageResult result = store.putMessage(message(messages.getJSONObject(i)));
            JSONObject shown = new JSONObject(true);
            shown.put("status", result.getPutMessageStatus().name());
            if (result.getAppendMessageResult() != null) {
                shown.put("queue_offset", result.getAppendMessageResult().getLogicsOffset());
                shown.put("physical_offset", result.getAppendMessageResult().getWroteOffset());
                shown.put("message_id", result.getAppendMessageResult().getMsgId());
            }
            results.add(shown);
        }
        return results;
    }

    private static MessageExtBrokerInner message(JSONObject from) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(from.getString("topic"));
        message.setQueueId(from.getIntValue("queue"));
        message.setBody(from.getString("body").getBytes(StandardCharsets.UTF_8));
        message.setFlag(from.getIntValue("flag"));
        message.setBornTimestamp(from.getLongValue("born_timestamp"));
        message.setBornHost(new InetSocketAddress("127.0.0.1", 4321));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        for (Map.Entry<String, Object> property : from.getJSONObject("properties").entrySet()) {
            MessageAccessor.putProperty(message, property.getKey(), property.getValue().toString());
        }
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(message.getTags()));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }
}
