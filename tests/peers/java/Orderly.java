import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * Messages in order by key with the standard Java client, arguments KEY=VALUE.
 *
 * mode=produce  topic= keys= threads= rate= seconds= size=  : each thread has keys of its own and one message on its way;
 *               rate 0 is as fast as possible. One JSON line at the end; the first refusal goes to stderr
 * mode=consume  topic= group= workMs= poison=  : an orderly push consumer; a line "H key sequence sentNanos handledNanos" for each
 *               message that was handled, until it is killed. The key `poison` is never handled: its queue is suspended each time
 *
 * A body is "key sequence sentNanos" and padding. Times are those of System.nanoTime, which other processes of the machine share.
 */
public class Orderly {
    static final Map<String, String> ARGS = new HashMap<>();

    static int number(String name, int otherwise) { return Integer.parseInt(ARGS.getOrDefault(name, "" + otherwise)); }

    public static void main(String[] argv) throws Exception {
        for (String a : argv) ARGS.put(a.substring(0, a.indexOf('=')), a.substring(a.indexOf('=') + 1));
        if (ARGS.get("mode").equals("produce")) produce(); else consume();
    }

    static void produce() throws Exception {
        int keys = number("keys", 64), threads = Math.min(number("threads", 16), keys), rate = number("rate", 0), size = number("size", 100);
        DefaultMQProducer p = new DefaultMQProducer("orderly-producer");
        p.setNamesrvAddr(ARGS.get("namesrv"));
        p.start();
        AtomicLong sent = new AtomicLong(), failed = new AtomicLong();
        long start = System.nanoTime(), until = start + number("seconds", 10) * 1000000000L;
        Thread[] list = new Thread[threads];
        for (int t = 0; t < threads; t++) {
            int first = t;
            list[t] = new Thread(() -> {
                Map<Integer, Long> sequences = new HashMap<>();
                long begun = System.nanoTime(), mine = 0;
                double perThread = rate / (double) threads;
                for (int key = first; System.nanoTime() < until; key = key + threads < keys ? key + threads : first) {
                    if (rate > 0) {
                        long at = begun + (long) (mine * 1e9 / perThread);
                        for (long now; (now = System.nanoTime()) < at; ) {
                            try { Thread.sleep((at - now) / 1000000, (int) ((at - now) % 1000000)); } catch (InterruptedException e) { return; }
                        }
                    }
                    long sequence = sequences.merge(key, 1L, Long::sum) - 1;
                    byte[] body = Arrays.copyOf(String.format("%d %d %d ", key, sequence, System.nanoTime()).getBytes(), size);
                    try {
                        SendResult r = p.send(new Message(ARGS.get("topic"), body),
                            (queues, message, arg) -> queues.get((Integer) arg % queues.size()), key);
                        if (r.getSendStatus() == SendStatus.SEND_OK) sent.incrementAndGet(); else failed.incrementAndGet();
                    } catch (Exception e) {
                        if (failed.getAndIncrement() == 0) System.err.println("refused: " + e.getMessage());
                    }
                    mine++;
                }
            });
            list[t].start();
        }
        for (Thread t : list) t.join();
        double took = (System.nanoTime() - start) / 1e9;
        System.out.printf("{\"sent\":%d,\"failed\":%d,\"perSecond\":%.1f}%n", sent.get(), failed.get(), sent.get() / took);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static void consume() throws Exception {
        int work = number("workMs", 0);
        String poison = ARGS.getOrDefault("poison", "");
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(ARGS.get("group"));
        c.setNamesrvAddr(ARGS.get("namesrv"));
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setConsumeThreadMin(64);
        c.setConsumeThreadMax(64);
        c.subscribe(ARGS.get("topic"), "*");
        c.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt m : messages) {
                String[] parts = new String(m.getBody()).split(" ", 4);
                if (parts[0].equals(poison)) return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                if (work > 0) {
                    try { Thread.sleep(work); } catch (InterruptedException e) { return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT; }
                }
                System.out.println("H " + parts[0] + " " + parts[1] + " " + parts[2] + " " + System.nanoTime());
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        c.start();
        Runtime.getRuntime().addShutdownHook(new Thread(c::shutdown));
        System.out.println("started");
        System.out.flush();
        Thread.sleep(Long.MAX_VALUE);
    }
}
