package storeinterop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens store directories with RocketMQ's own store code. The only argument is a JSON file:
 *
 * <pre>
 * {"directory": ..., "commitlog_file_bytes": ..., "consume_queue_file_bytes": ..., "index_slots": ...,
 *  "index_entries": ..., "result": the file that the answer goes to,
 *  "append": [messages] (absent = only load and read), "queries": {"by_key": [...], "by_time": [...], "get": [...]}}
 * </pre>
 *
 * With "append" the store is loaded, started, the messages are put, it is shut down properly and the put results are
 * the answer; without it is loaded (which recovers it) and the answer is everything that can be read; its files are left
 * as they then are.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) {
        try {
            work(args);
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        // Not System.exit: the store's threads would keep the process, and after load() alone none needs to be stopped.
        Runtime.getRuntime().halt(0);
    }

    private static void work(String[] args) throws Exception {
        JSONObject task = JSON.parseObject(Files.readString(Path.of(args[0])));
        JSONObject answer = new JSONObject(true);
        DefaultMessageStore store = open(task);
        boolean loaded = store.load();
        answer.put("loaded", loaded);
        JSONArray messages = task.getJSONArray("append");
        if (loaded && messages != null) {
            store.start();
            answer.put("results", Appends.putAll(store, messages));
            store.shutdown();
            answer.put("clean", store.isShutdown());
        } else if (loaded) {
            Reads.readAll(store, task.getJSONObject("queries"), answer);
            Settings.readAll(Path.of(task.getString("directory"), "config"), answer);
            // getMessage answers only while the store runs.
            store.start();
            Reads.getAll(store, task.getJSONObject("queries"), answer);
        }
        String text = JSON.toJSONString(answer, SerializerFeature.WriteNonStringKeyAsString);
        Files.writeString(Path.of(task.getString("result")), text, StandardCharsets.UTF_8);
    }

    private static DefaultMessageStore open(JSONObject task) throws Exception {
        String directory = task.getString("directory");
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory);
        config.setStorePathCommitLog(directory + "/commitlog");
        config.setMappedFileSizeCommitLog(task.getIntValue("commitlog_file_bytes"));
        config.setMappedFileSizeConsumeQueue(task.getIntValue("consume_queue_file_bytes"));
        config.setMaxHashSlotNum(task.getIntValue("index_slots"));
        config.setMaxIndexNum(task.getIntValue("index_entries"));
        config.setFileReservedTime(87600);
        config.setCleanFileForciblyEnable(false);
        config.setEnableConsumeQueueExt(false);
        config.setTimerWheelEnable(false);
        config.setHaListenPort(0);
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerIP1("127.0.0.1");
        return new DefaultMessageStore(config, new BrokerStatsManager(broker), null, broker, new ConcurrentHashMap<>());
    }
}
