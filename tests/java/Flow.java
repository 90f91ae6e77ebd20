import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * The standard producer or push consumer with its default settings, one line of output for each thing that happens, until stdin ends.
 *
 * mode=produce  pause=MS prefix=TEXT : "ack MS BODY" or "fail MS TOOK-MS BODY ERROR"; a failed message is not sent again by this program
 * mode=consume  group=G              : "got MS QUEUE QUEUE-OFFSET BODY"
 * poll=MS                            : how often routes are read anew and heartbeats are sent, instead of every 30 s
 * MS are milliseconds since 1970.
 */
public class Flow {
    static final Map<String, String> ARGS = new HashMap<>();
    static final AtomicBoolean ended = new AtomicBoolean();

    public static void main(String[] argv) throws Exception {
        for (String a : argv) ARGS.put(a.substring(0, a.indexOf('=')), a.substring(a.indexOf('=') + 1));
        Thread input = new Thread(() -> {
            try { while (System.in.read() >= 0) { } } catch (java.io.IOException e) { /* the same as its end */ }
            ended.set(true);
        });
        input.setDaemon(true);
        input.start();
        if ("produce".equals(ARGS.get("mode"))) produce(); else consume();
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static <C extends ClientConfig> C configured(C client) {
        client.setNamesrvAddr(ARGS.get("namesrv"));
        if (ARGS.containsKey("poll")) {
            client.setPollNameServerInterval(Integer.parseInt(ARGS.get("poll")));
            client.setHeartbeatBrokerInterval(Integer.parseInt(ARGS.get("poll")));
        }
        return client;
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static void produce() throws Exception {
        DefaultMQProducer p = configured(new DefaultMQProducer("flow-producer"));
        p.start();
        long pause = Long.parseLong(ARGS.getOrDefault("pause", "5"));
        String prefix = ARGS.getOrDefault("prefix", "flow");
        for (long n = 0; !ended.get(); n++) {
            String body = prefix + "-" + n;
            long began = System.currentTimeMillis();
            try {
                SendResult r = p.send(new Message(ARGS.get("topic"), "tag", "key-" + body, body.getBytes(StandardCharsets.UTF_8)));
                long now = System.currentTimeMillis();
                say(r.getSendStatus() == SendStatus.SEND_OK ? "ack " + now + " " + body : "fail " + now + " " + (now - began) + " " + body + " " + r.getSendStatus());
            } catch (Exception e) {
                long now = System.currentTimeMillis();
                String text = String.valueOf(e.getMessage()).split("\n")[0];
                say("fail " + now + " " + (now - began) + " " + body + " " + e.getClass().getSimpleName() + ": " + text);
            }
            Thread.sleep(pause);
        }
        p.shutdown();
    }

    static void consume() throws Exception {
        DefaultMQPushConsumer c = configured(new DefaultMQPushConsumer(ARGS.get("group")));
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.subscribe(ARGS.get("topic"), "*");
        c.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
            for (MessageExt m : list) {
                say("got " + System.currentTimeMillis() + " " + m.getQueueId() + " " + m.getQueueOffset() + " "
                    + new String(m.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        while (!ended.get()) Thread.sleep(50);
        c.shutdown();
    }
}
