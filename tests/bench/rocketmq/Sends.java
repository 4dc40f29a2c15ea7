import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Scanner;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * RocketMQ's own client, for `rocketmq_sides`: Sends NAME_SERVER CONTROLLER.
 *
 * <p>It prints "master" when both groups have one and their topics are there, and then obeys lines:
 *
 * <pre>
 *   replicas N              prints "in sync" when so many copies of the second group are
 *   single COUNT SIZE TOPIC the microseconds of so many sends, one at a time, as JSON
 *   many COUNT SIZE TOPIC   the seconds of so many in batches of up to 1 MiB, four of them under way
 * </pre>
 */
public final class Sends {
    private static final String[] GROUPS = {"broker-one", "broker-all"};
    private static final String[] TOPICS = {"one", "all"};
    private static final int QUEUES = 4;
    private static final int BATCH_BYTES = 1 << 20;
    private static final int UNDER_WAY = 4;
    private static final int TIMEOUT_MS = 30_000;
    /** What a message of a batch has beside its body, roughly. */
    private static final int OVERHEAD_BYTES = 64;

    private final DefaultMQProducer producer = new DefaultMQProducer("bench");
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt();
    private final String controller;

    private Sends(String nameServer, String controller) throws Exception {
        this.controller = controller;
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setMaxMessageSize(2 * BATCH_BYTES);
        producer.start();
        admin.setNamesrvAddr(nameServer);
        admin.start();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream told = System.out;
        System.setOut(System.err); // what libraries print is no answer
        Sends sends = new Sends(arguments[0], arguments[1]);
        for (int each = 0; each < GROUPS.length; each++) {
            sends.makeTopic(GROUPS[each], TOPICS[each]);
        }
        told.println("master");
        Scanner lines = new Scanner(System.in);
        while (lines.hasNext()) {
            String way = lines.next();
            int count = lines.nextInt();
            if (way.equals("replicas")) {
                sends.awaitInSync(count);
                told.println("in sync");
                continue;
            }
            byte[] body = new byte[lines.nextInt()];
            String topic = lines.next();
            told.println(way.equals("single") ? sends.singles(count, body, topic) : sends.many(count, body, topic));
        }
        System.exit(0);
    }

    private void makeTopic(String group, String topic) throws Exception {
        for (;;) {
            try {
                String master = admin.examineBrokerClusterInfo().getBrokerAddrTable().get(group).getBrokerAddrs().get(0L);
                admin.createAndUpdateTopicConfig(master, new TopicConfig(topic, QUEUES, QUEUES));
                admin.examineTopicRouteInfo(topic);
                return;
            } catch (Exception notYet) {
                Thread.sleep(200);
            }
        }
    }

    private void awaitInSync(int count) throws Exception {
        for (;;) {
            try {
                if (admin.getInSyncStateData(controller, List.of(GROUPS[1])).getReplicasInfoTable().get(GROUPS[1])
                        .getInSyncReplicas().size() == count) {
                    return;
                }
            } catch (Exception notYet) {
                // the controller is being elected
            }
            Thread.sleep(200);
        }
    }

    private List<Double> singles(int count, byte[] body, String topic) throws Exception {
        List<Double> times = new ArrayList<>(count);
        for (int each = 0; each < count; each++) {
            long began = System.nanoTime();
            SendResult result = producer.send(new Message(topic, body));
            times.add((System.nanoTime() - began) / 1e3);
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException(result.toString());
            }
        }
        return times;
    }

    private double many(int count, byte[] body, String topic) throws Exception {
        int most = Math.max(1, BATCH_BYTES / (body.length + OVERHEAD_BYTES));
        Semaphore room = new Semaphore(UNDER_WAY);
        AtomicReference<Object> wrong = new AtomicReference<>();
        SendCallback answered = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    wrong.set(result);
                }
                room.release();
            }

            @Override
            public void onException(Throwable error) {
                wrong.set(error);
                room.release();
            }
        };
        long began = System.nanoTime();
        for (int sent = 0; sent < count; sent += most) {
            List<Message> batch = new ArrayList<>(most);
            for (int each = 0; each < Math.min(most, count - sent); each++) {
                batch.add(new Message(topic, body));
            }
            if (!room.tryAcquire(TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException("no answer");
            }
            producer.send(batch, answered, TIMEOUT_MS);
        }
        if (!room.tryAcquire(UNDER_WAY, TIMEOUT_MS, TimeUnit.MILLISECONDS) || wrong.get() != null) {
            throw new IllegalStateException("not all were taken: " + wrong.get());
        }
        return (System.nanoTime() - began) / 1e9;
    }
}
