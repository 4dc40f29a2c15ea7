import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Messages between RocketMQ's Java client and RayMQ's Python client, for test_exchange.py:
 * {@code Exchange produce NAMESRV TOPIC COUNT} or {@code Exchange consume NAMESRV TOPIC COUNT}. A line per message:
 * unique key, offset message id, broker, queue id, queue offset, born time, tags, keys, properties and body, by tabs;
 * the last four in base64.
 */
public final class Exchange {
    public static void main(String[] args) throws Exception {
        String ns = args[1];
        String topic = args[2];
        int count = Integer.parseInt(args[3]);
        if (args[0].equals("produce")) {
            produce(ns, topic, count);
        } else {
            consume(ns, topic, count);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void produce(String ns, String topic, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("exchange_p");
        producer.setNamesrvAddr(ns);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        for (int i = 0; i < count; i++) {
            // every third body is long enough to be compressed by the client
            byte[] body = ("body " + i + " äöü ☃ " + (i % 3 == 0 ? "x".repeat(10_000) : "")).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(topic, i % 2 == 0 ? "even" : "ödd", "key-" + i + " shared", body);
            message.putUserProperty("number", Integer.toString(i));
            message.putUserProperty("text", "Grüße ☃");
            SendResult result = producer.send(message);
            print(result.getMsgId(), result.getOffsetMsgId(), result.getMessageQueue().getBrokerName(),
                result.getMessageQueue().getQueueId(), result.getQueueOffset(), 0, message, message.getProperties(), body);
        }
    }

    private static void consume(String ns, String topic, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("exchange_c");
        consumer.setNamesrvAddr(ns);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                MessageClientExt received = (MessageClientExt) message;
                print(received.getMsgId(), received.getOffsetMsgId(),
                    message.getBrokerName(), message.getQueueId(), message.getQueueOffset(), message.getBornTimestamp(),
                    message, message.getProperties(), message.getBody());
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        left.await(60, TimeUnit.SECONDS);
    }

    private static synchronized void print(String unique, String id, String broker, int queueId, long offset, long born,
        Message message, Map<String, String> properties, byte[] body) {
        StringBuilder told = new StringBuilder();
        new TreeMap<>(properties).forEach((name, value) -> told.append(name).append('\u0001').append(value).append('\u0002'));
        System.out.println(String.join("\t", Arrays.asList(unique, id, broker, "" + queueId, "" + offset, "" + born,
            base64(String.valueOf(message.getTags())), base64(String.valueOf(message.getKeys())), base64(told.toString()),
            Base64.getEncoder().encodeToString(body))));
    }

    private static String base64(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    private Exchange() {
    }
}
