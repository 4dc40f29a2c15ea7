import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** One case of the official Java gRPC client; prints "passed". Run as {@code java Client.java ENDPOINT CASE}. */
final class Client {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration configuration;

    interface Case {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        Map<String, Case> cases = Map.of(
            "normal", Client::normal, "fifo", Client::fifo, "delay", Client::delay, "recall", Client::recall,
            "transaction", Client::transaction, "check", Client::check, "type", Client::type,
            "invisible", Client::invisible, "retry", Client::retry, "dead", Client::dead);
        cases.get(arguments[1]).run();
        System.out.println("passed");
        System.exit(0);
    }

    private static void require(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static void until(BooleanSupplier holds, int seconds, String what) throws Exception {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (!holds.getAsBoolean()) {
            require(System.nanoTime() < end, what);
            Thread.sleep(100);
        }
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setKeys(body.replace(" ", "-")).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody().duplicate()).toString();
    }

    private static Producer producer(String topic, TransactionChecker checker) throws Exception {
        ProducerBuilder builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic);
        return checker == null ? builder.build() : builder.setTransactionChecker(checker).build();
    }

    private static SendReceipt send(Message message) throws Exception {
        try (Producer producer = producer(message.getTopic(), null)) {
            return producer.send(message);
        }
    }

    private static Map<String, FilterExpression> all(String topic) {
        return Collections.singletonMap(topic, new FilterExpression("*", FilterExpressionType.TAG));
    }

    private static SimpleConsumer simpleConsumer(String topic) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("g-" + UUID.randomUUID()).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(all(topic)).build();
    }

    private static PushConsumer pushConsumer(String topic, String group, MessageListener listener) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(all(topic)).setMessageListener(listener).build();
    }

    /** Returns the first messages, not acknowledged; a request may fail while the proxy learns routes. */
    private static List<MessageView> receive(SimpleConsumer consumer, int count, int seconds, int invisibleSeconds)
        throws Exception {
        List<MessageView> found = new ArrayList<>();
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (found.size() < count && System.nanoTime() < end) {
            try {
                found.addAll(consumer.receive(8, Duration.ofSeconds(invisibleSeconds)));
            } catch (Exception error) {
                System.out.println("receive: " + error);
                Thread.sleep(1_000);
            }
        }
        return found;
    }

    private static List<String> received(String topic, int count, int seconds) throws Exception {
        List<String> bodies = new ArrayList<>();
        try (SimpleConsumer consumer = simpleConsumer(topic)) {
            for (MessageView each : receive(consumer, count, seconds, 60)) {
                consumer.ack(each);
                bodies.add(body(each));
            }
        }
        return bodies;
    }

    private static void normal() throws Exception {
        SendReceipt receipt = send(message("normal", "java first").setTag("a").addProperty("colour", "red").build());
        try (SimpleConsumer consumer = simpleConsumer("normal")) {
            for (MessageView each : receive(consumer, 100, 20, 60)) {
                if (each.getMessageId().equals(receipt.getMessageId())) {
                    require(body(each).equals("java first"), "the body");
                    require(each.getTag().orElse("").equals("a"), "the tag");
                    require(each.getProperties().get("colour").equals("red"), "the property");
                    require(each.getKeys().contains("java-first"), "the key");
                    return;
                }
            }
        }
        throw new AssertionError("the message was not received");
    }

    /** The third message fails twice: the ones behind it wait. The broker has a FIFO group of this name. */
    private static void fifo() throws Exception {
        List<String> sent = new ArrayList<>();
        try (Producer producer = producer("fifo", null)) {
            for (int number = 0; number < 20; number++) {
                sent.add("java f" + number);
                producer.send(message("fifo", "java f" + number).setMessageGroup("java").build());
            }
        }
        ConcurrentLinkedQueue<String> finished = new ConcurrentLinkedQueue<>();
        ConcurrentLinkedQueue<Integer> attempts = new ConcurrentLinkedQueue<>();
        try (PushConsumer consumer = pushConsumer("fifo", "fifo-java", received -> {
            if (!received.getMessageGroup().orElse("").equals("java")) {
                return ConsumeResult.SUCCESS;
            }
            if (body(received).equals("java f2")) {
                attempts.add(received.getDeliveryAttempt());
                if (attempts.size() < 3) {
                    return ConsumeResult.FAILURE;
                }
            }
            finished.add(body(received));
            return ConsumeResult.SUCCESS;
        })) {
            until(() -> finished.size() >= sent.size(), 90, "all messages are received");
            require(new ArrayList<>(finished).equals(sent), "the order: " + finished);
            require(new ArrayList<>(attempts).equals(List.of(1, 2, 3)), "the attempts: " + attempts);
        }
    }

    private static void delay() throws Exception {
        long due = System.currentTimeMillis() + 6_000;
        send(message("delay", "java later").setDeliveryTimestamp(due).build());
        List<String> found = new ArrayList<>();
        for (int i = 0; i < 6 && !found.contains("java later"); i++) {
            found = received("delay", 100, 6);
        }
        require(found.contains("java later"), "it is received");
        require(System.currentTimeMillis() >= due, "not before its time");
    }

    private static void recall() throws Exception {
        long due = System.currentTimeMillis() + 8_000;
        try (Producer producer = producer("delay", null)) {
            Message message = message("delay", "java recalled").setDeliveryTimestamp(due).build();
            producer.recallMessage("delay", producer.send(message).getRecallHandle());
        }
        Thread.sleep(Math.max(0, due + 2_000 - System.currentTimeMillis()));
        require(!received("delay", 100, 12).contains("java recalled"), "it is not delivered");
    }

    private static void transaction() throws Exception {
        try (Producer producer = producer("transaction", received -> TransactionResolution.UNKNOWN)) {
            Transaction first = producer.beginTransaction();
            producer.send(message("transaction", "java committed").build(), first);
            first.commit();
            Transaction second = producer.beginTransaction();
            producer.send(message("transaction", "java rolled back").build(), second);
            second.rollback();
        }
        List<String> found = received("transaction", 100, 20);
        require(Collections.frequency(found, "java committed") == 1, "the committed one is visible once: " + found);
        require(!found.contains("java rolled back"), "the other one is not: " + found);
    }

    private static void check() throws Exception {
        ConcurrentLinkedQueue<String> asked = new ConcurrentLinkedQueue<>();
        try (Producer producer = producer("transaction", half -> {
            asked.add(body(half));
            return body(half).contains("commit") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
        })) {
            for (String body : List.of("java asked: commit", "java asked: rollback")) {
                producer.send(message("transaction", body).build(), producer.beginTransaction());
                until(() -> asked.contains(body), 120, "the producer is asked");
            }
            List<String> found = received("transaction", 100, 20);
            require(found.contains("java asked: commit"), "the committed one is visible: " + found);
            require(!found.contains("java asked: rollback"), "the other one is not: " + found);
        }
    }

    private static void type() throws Exception {
        try {
            send(message("normal", "x").setMessageGroup("g").build());
        } catch (Exception error) {
            require(error.toString().contains("not match"), error.toString());
            return;
        }
        throw new AssertionError("a FIFO message was sent to a topic of NORMAL ones");
    }

    private static void invisible() throws Exception {
        send(message("retried", "java hidden").build());
        try (SimpleConsumer consumer = simpleConsumer("retried")) {
            MessageView first = find(consumer, "java hidden", 10);
            consumer.changeInvisibleDuration(first, Duration.ofSeconds(15));
            long began = System.nanoTime();
            MessageView again = find(consumer, "java hidden", 30);
            require(System.nanoTime() - began > 8_000_000_000L, "it came too early");
            require(again.getDeliveryAttempt() == 2, "the attempt: " + again.getDeliveryAttempt());
            consumer.ack(again);
        }
    }

    private static MessageView find(SimpleConsumer consumer, String wanted, int invisibleSeconds) throws Exception {
        for (int i = 0; i < 30; i++) {
            for (MessageView each : receive(consumer, 1, 6, invisibleSeconds)) {
                if (body(each).equals(wanted)) {
                    return each;
                }
                consumer.ack(each);
            }
        }
        throw new AssertionError(wanted + " was not received");
    }

    private static void retry() throws Exception {
        send(message("retried", "java fails once").build());
        ConcurrentLinkedQueue<Integer> attempts = new ConcurrentLinkedQueue<>();
        try (PushConsumer consumer = pushConsumer("retried", "g-" + UUID.randomUUID(), received -> {
            if (!body(received).equals("java fails once")) {
                return ConsumeResult.SUCCESS;
            }
            attempts.add(received.getDeliveryAttempt());
            return received.getDeliveryAttempt() == 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        })) {
            until(() -> attempts.contains(2), 120, "it comes again: " + attempts);
        }
    }

    /** A message that always fails; the broker's group of this name allows two attempts. */
    private static void dead() throws Exception {
        send(message("retried", "java always fails").build());
        ConcurrentLinkedQueue<Integer> attempts = new ConcurrentLinkedQueue<>();
        try (PushConsumer consumer = pushConsumer("retried", "dead-java", received -> {
            if (!body(received).equals("java always fails")) {
                return ConsumeResult.SUCCESS;
            }
            attempts.add(received.getDeliveryAttempt());
            return ConsumeResult.FAILURE;
        })) {
            until(() -> attempts.contains(2), 120, "it comes again: " + attempts);
            Thread.sleep(45_000);
            require(new ArrayList<>(attempts).equals(List.of(1, 2)), "the attempts: " + attempts);
        }
    }
}
