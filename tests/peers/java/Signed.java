import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** A producer and a push consumer that sign: namesrv= topic= group= key= secret= count=; prints what happened. */
public class Signed {
    public static void main(String[] args) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (String each : args) {
            given.put(each.substring(0, each.indexOf('=')), each.substring(each.indexOf('=') + 1));
        }
        String topic = given.get("topic"), group = given.get("group");
        int count = Integer.parseInt(given.getOrDefault("count", "10"));
        AclClientRPCHook hook = new AclClientRPCHook(new SessionCredentials(given.get("key"), given.get("secret")));
        DefaultMQProducer producer = new DefaultMQProducer(group + "-producer", hook);
        producer.setNamesrvAddr(given.get("namesrv"));
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        try {
            for (int i = 0; i < count; i++) {
                Message message = new Message(topic, "tag", "key-" + i, ("signed ä " + i).getBytes(StandardCharsets.UTF_8));
                System.out.println("sent " + producer.send(message, 10_000).getSendStatus());
            }
        } catch (Exception error) {
            String cause = error.getCause() == null ? "" : ": " + error.getCause().getMessage();
            System.out.println("refused " + (error.getMessage().split("\n")[0] + cause).split("\n")[0]);
            producer.shutdown();
            System.exit(1);
        }
        CountDownLatch latch = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook);
        consumer.setNamesrvAddr(given.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> latch.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean all = latch.await(Long.parseLong(given.getOrDefault("timeout", "60")), TimeUnit.SECONDS);
        System.out.println("consumed " + (count - latch.getCount()));
        consumer.shutdown();
        producer.shutdown();
        System.exit(all ? 0 : 1);
    }
}
