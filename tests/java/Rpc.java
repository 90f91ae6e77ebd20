import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * One side of request-reply with the standard client's default settings.
 *
 * mode=reply    group=G : replies "java:" and the body to each request until stdin ends; "started", then "replied BODY" or "failed BODY ERROR"
 * mode=request  count=N : asks N times, four at once; "reply BODY" or "failed BODY ERROR" for each; ends by itself
 */
public class Rpc {
    static final Map<String, String> ARGS = new HashMap<>();

    public static void main(String[] argv) throws Exception {
        for (String a : argv) ARGS.put(a.substring(0, a.indexOf('=')), a.substring(a.indexOf('=') + 1));
        if ("reply".equals(ARGS.get("mode"))) reply(); else request();
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static synchronized void say(String line) {
        System.out.println(line.replace('\n', ' '));
        System.out.flush();
    }

    static DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer(group);
        p.setNamesrvAddr(ARGS.get("namesrv"));
        p.setInstanceName(group);
        p.start();
        return p;
    }

    static void reply() throws Exception {
        DefaultMQProducer p = producer("rpc-replies");
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(ARGS.get("group"));
        c.setNamesrvAddr(ARGS.get("namesrv"));
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.subscribe(ARGS.get("topic"), "*");
        c.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
            for (MessageExt m : list) {
                String body = new String(m.getBody(), StandardCharsets.UTF_8);
                try {
                    p.send(MessageUtil.createReplyMessage(m, ("java:" + body).getBytes(StandardCharsets.UTF_8)));
                    say("replied " + body.substring(0, Math.min(20, body.length())));
                } catch (Exception e) {
                    say("failed " + body + " " + e);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        say("started");
        while (System.in.read() >= 0) { }
    }

    static void request() throws Exception {
        DefaultMQProducer p = producer("rpc-requests");
        ExecutorService pool = Executors.newFixedThreadPool(4);
        int count = Integer.parseInt(ARGS.get("count"));
        for (int n = 0; n < count; n++) {
            String body = "ask-" + n;
            pool.execute(() -> {
                try {
                    Message m = p.request(new Message(ARGS.get("topic"), body.getBytes(StandardCharsets.UTF_8)), 40_000);
                    say("reply " + new String(m.getBody(), StandardCharsets.UTF_8));
                } catch (Throwable e) {
                    say("failed " + body + " " + e);
                }
            });
        }
        pool.shutdown();
        pool.awaitTermination(120, TimeUnit.SECONDS);
        Thread.sleep(1000); // brokers shall hear that the last replies were taken
    }
}
