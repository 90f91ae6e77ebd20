import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends one message and consumes it, both with message traces, and prints its id. Arguments: namesrv=HOST:PORT topic=T, which exists.
 */
public class Traced {
    public static void main(String[] argv) throws Exception {
        Map<String, String> args = new HashMap<>();
        for (String each : argv) args.put(each.substring(0, each.indexOf('=')), each.substring(each.indexOf('=') + 1));
        DefaultMQProducer producer = new DefaultMQProducer("traced-producer", true, null);
        producer.setNamesrvAddr(args.get("namesrv"));
        producer.setSendMsgTimeout(10000);
        producer.start();
        SendResult sent = producer.send(new Message(args.get("topic"), "tag", "key", "traced".getBytes()));
        CountDownLatch got = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("traced-consumer", true, null);
        consumer.setNamesrvAddr(args.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args.get("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
            if (list.stream().anyMatch(m -> m.getMsgId().equals(sent.getMsgId()))) got.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!got.await(60, TimeUnit.SECONDS)) throw new IllegalStateException("the message did not come");
        consumer.shutdown();
        producer.shutdown();
        System.out.println(sent.getMsgId());
        System.exit(0);
    }
}
