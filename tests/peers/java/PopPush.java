import java.util.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * The standard push consumer whose queues the broker assigns (clientRebalance=false), arguments KEY=VALUE: topic= group= invisibleMs=.
 *
 * Prints a line "H body reconsumeTimes" for each message that was handled and one "R body reconsumeTimes" for each that is to come
 * again, until it is killed. A body that begins with "again" is handled when it comes for the second time. There is nothing about
 * dead letters: this client acks what it was given too often.
 */
public class PopPush {
    public static void main(String[] argv) throws Exception {
        Map<String, String> args = new HashMap<>();
        for (String a : argv) args.put(a.substring(0, a.indexOf('=')), a.substring(a.indexOf('=') + 1));
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(args.get("group"));
        c.setNamesrvAddr(args.get("namesrv"));
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setClientRebalance(false);
        c.setPopInvisibleTime(Long.parseLong(args.getOrDefault("invisibleMs", "10000")));
        c.setPollNameServerInterval(2000);
        c.setHeartbeatBrokerInterval(2000);
        c.subscribe(args.get("topic"), "*");
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt m : messages) {
                String body = new String(m.getBody());
                boolean again = body.startsWith("again") && m.getReconsumeTimes() == 0;
                System.out.println((again ? "R " : "H ") + body + " " + m.getReconsumeTimes());
                System.out.flush();
                if (again) return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        System.out.println("started");
        System.out.flush();
        Thread.sleep(Long.MAX_VALUE);
    }
}
