import java.util.*;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Fills queues that are no plain ones: light message queues (%LMQ%, which messages of an ordinary topic name in a property),
 * and queues of inner batches (queue.type=BatchCQ). Prints one JSON line. Arguments: namesrv=HOST:PORT broker=HOST:PORT
 * count=MESSAGES.
 */
public class QueueKinds {
    public static void main(String[] argv) throws Exception {
        Map<String, String> args = new HashMap<>();
        for (String each : argv) args.put(each.substring(0, each.indexOf('=')), each.substring(each.indexOf('=') + 1));
        int count = Integer.parseInt(args.getOrDefault("count", "300"));
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(args.get("namesrv"));
        admin.start();
        for (String topic : new String[] {"kinds-light", "kinds-batch"}) {
            TopicConfig config = new TopicConfig(topic);
            config.setReadQueueNums(2);
            config.setWriteQueueNums(2);
            if (topic.equals("kinds-batch")) config.setAttributes(Collections.singletonMap("+queue.type", "BatchCQ"));
            admin.createAndUpdateTopicConfig(args.get("broker"), config);
            for (int tries = 0; tries < 100; tries++) {  // the name server learns of it a moment later
                try {
                    if (!admin.examineTopicRouteInfo(topic).getQueueDatas().isEmpty()) break;
                } catch (Exception notYet) {
                    Thread.sleep(100);
                }
            }
        }
        DefaultMQProducer producer = new DefaultMQProducer("kinds-producer");
        producer.setNamesrvAddr(args.get("namesrv"));
        producer.setSendMsgTimeout(10000);
        producer.start();
        int batched = 0;
        for (int i = 0; i < count; i++) {
            Message message = new Message("kinds-light", i % 3 == 0 ? "" : "tag" + i % 5, "key-" + i, ("light-" + i).getBytes());
            String queues = i % 4 == 3 ? "" : "%LMQ%all" + (i % 2 == 0 ? ",%LMQ%even" : "") + (i % 5 == 0 ? ",%LMQ%fifth" : "");
            if (!queues.isEmpty()) MessageAccessor.putProperty(message, MessageConst.PROPERTY_INNER_MULTI_DISPATCH, queues);
            producer.send(message);
            if (i % 3 != 0) continue;
            List<Message> batch = new ArrayList<>();
            for (int j = 0; j <= i % 7; j++) batch.add(new Message("kinds-batch", "batch", ("batch-" + i + "-" + j).getBytes()));
            batched += batch.size();
            producer.send(batch);
        }
        producer.send(new Message("kinds-batch", "alone", "no batch: it has a unit all the same".getBytes()));
        producer.shutdown();
        admin.shutdown();
        System.out.println("{\"ok\":true,\"messages\":" + (count + 1 + (count + 2) / 3) + ",\"topics\":{},\"light\":" + count
            + ",\"batched\":" + batched + "}");
        System.exit(0);
    }
}
