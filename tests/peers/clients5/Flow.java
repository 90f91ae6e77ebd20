import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * The scenarios of README.md with the Java client of RocketMQ 5: `Flow ENDPOINTS [SCENARIO ...]`.
 *
 * Topics and groups exist already, as `java-SCENARIO`. Prints one JSON line for each scenario; scenarios run side by side.
 * `dead` consumes until the input ends. `Flow ENDPOINTS steady TOPIC [GROUPS]` sends and consumes in lines `ack`, `fail` and
 * `got` (of a group of the topic's name) until its input ends: then it sends no more, and ends when it is killed. With
 * GROUPS the messages are of so many message groups, in turn.
 */
public final class Flow {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final String CLIENT = "java";
    static final Duration AWAIT = Duration.ofSeconds(5);
    static final Duration INVISIBLE = Duration.ofSeconds(30);
    static final Duration SHORTEST = Duration.ofSeconds(10);
    static final long WAIT_MS = 90_000;
    static final long SLOW_MS = 30_000;
    static final long WORK_MS = 100;
    static ClientConfiguration configuration;

    public static void main(String[] args) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        if (args.length > 2 && args[1].equals("steady")) {
            steady(args[2], args.length > 3 ? Integer.parseInt(args[3]) : 0);
            return;
        }
        Map<String, Callable<Map<String, Object>>> scenarios = new LinkedHashMap<>();
        scenarios.put("normal", Flow::normal);
        scenarios.put("again", Flow::again);
        scenarios.put("fifo-push", Flow::fifoPush);
        scenarios.put("fifo-simple", Flow::fifoSimple);
        scenarios.put("fifo-dead", Flow::fifoDead);
        scenarios.put("delay", Flow::delay);
        scenarios.put("recall", Flow::recall);
        scenarios.put("transaction", Flow::transaction);
        scenarios.put("push", Flow::push);
        scenarios.put("slow", Flow::slow);
        scenarios.put("dead", Flow::dead);
        scenarios.put("filter-tag", () -> filter("filter-tag", new FilterExpression("A || C")));
        scenarios.put("filter-sql",
            () -> filter("filter-sql", new FilterExpression("i > 5 AND TAGS = 'A'", FilterExpressionType.SQL92)));
        scenarios.put("priority", Flow::priority);
        scenarios.put("errors", Flow::errors);
        if (args.length > 1) {
            scenarios.keySet().retainAll(List.of(args).subList(1, args.length));
        }
        ExecutorService pool = Executors.newCachedThreadPool();
        Map<String, Future<Map<String, Object>>> running = new LinkedHashMap<>();
        scenarios.forEach((name, scenario) -> running.put(name, pool.submit(scenario)));
        boolean well = true;
        for (Map.Entry<String, Future<Map<String, Object>>> each : running.entrySet()) {
            Map<String, Object> line = new TreeMap<>();
            line.put("scenario", each.getKey());
            try {
                line.put("saw", each.getValue().get());
            } catch (Exception error) {
                well = false;
                line.put("error", String.valueOf(error.getCause()));
            }
            System.out.println(json(line));
        }
        System.exit(well ? 0 : 1);
    }

    static Map<String, Object> normal() throws Exception {
        Map<String, String> ids = new ConcurrentHashMap<>();
        try (Producer producer = producer("normal"); SimpleConsumer consumer = simple("normal", all())) {
            for (int i = 0; i < 12; i++) {
                ids.put("body-" + i, producer.send(message("normal", i).build()).getMessageId().toString());
            }
            List<MessageView> got = receive(consumer, 12, INVISIBLE);
            for (MessageView each : got) {
                consumer.ack(each);
            }
            boolean same = got.stream().allMatch(each -> each.getMessageId().toString().equals(ids.get(body(each))));
            return saw("messages", shapes(got), "idsAsSent", same, "afterAcks", consumer.receive(16, SHORTEST).size());
        }
    }

    static Map<String, Object> again() throws Exception {
        try (Producer producer = producer("again"); SimpleConsumer consumer = simple("again", all())) {
            producer.send(message("again", 0).build());
            MessageView first = receive(consumer, 1, SHORTEST).get(0);
            long received = System.nanoTime();
            MessageView second = receive(consumer, 1, SHORTEST).get(0);
            boolean early = seconds(received) < 9;
            consumer.changeInvisibleDuration(second, Duration.ofSeconds(3));
            long changed = System.nanoTime();
            MessageView third = receive(consumer, 1, INVISIBLE).get(0);
            boolean earlyAgain = seconds(changed) < 2;
            String late = failure(() -> { consumer.ack(first); return null; });
            consumer.ack(third);
            return saw("attempts", List.of(first.getDeliveryAttempt(), second.getDeliveryAttempt(), third.getDeliveryAttempt()),
                "tooEarly", early || earlyAgain, "sameId", first.getMessageId().equals(third.getMessageId()),
                "expiredHandle", late, "afterAck", consumer.receive(16, SHORTEST).size());
        }
    }

    static Map<String, Object> fifoPush() throws Exception {
        Map<String, List<String>> order = new ConcurrentHashMap<>();
        Collection<String> attempts = new ConcurrentLinkedQueue<>();
        try (Producer producer = producer("fifo-push")) {
            for (int i = 0; i < 12; i++) {
                producer.send(message("fifo-push", i).setMessageGroup("group-" + i % 3).build());
            }
            try (PushConsumer ignored = push("fifo-push", view -> {
                if (body(view).equals("body-4")) {
                    attempts.add("body-4/" + view.getDeliveryAttempt());
                    if (view.getDeliveryAttempt() == 1) {
                        return ConsumeResult.FAILURE;
                    }
                }
                order.computeIfAbsent(view.getMessageGroup().orElse(""), key -> Collections.synchronizedList(new ArrayList<>()))
                    .add(body(view));
                return ConsumeResult.SUCCESS;
            })) {
                until(() -> List.of("body-9", "body-10", "body-11").stream()
                    .allMatch(last -> order.values().stream().anyMatch(each -> each.contains(last))));
            }
        }
        return saw("order", new TreeMap<>(order), "attempts", attempts);
    }

    static Map<String, Object> fifoSimple() throws Exception {
        try (Producer producer = producer("fifo-simple"); SimpleConsumer consumer = simple("fifo-simple", all())) {
            for (int i = 0; i < 4; i++) {
                producer.send(message("fifo-simple", i).setMessageGroup("group").build());
            }
            List<MessageView> first = receiveOnce(consumer, 2, INVISIBLE);
            List<String> blocked = bodies(consumer.receive(2, INVISIBLE));
            for (MessageView each : first) {
                consumer.ack(each);
            }
            List<MessageView> second = receiveOnce(consumer, 2, SHORTEST);
            List<MessageView> third = receiveOnce(consumer, 2, INVISIBLE);
            for (MessageView each : third) {
                consumer.ack(each);
            }
            return saw("first", bodies(first), "whileHeld", blocked, "second", bodies(second), "again", bodies(third),
                "attempts", third.stream().map(MessageView::getDeliveryAttempt).collect(Collectors.toList()),
                "afterAcks", consumer.receive(2, SHORTEST).size());
        }
    }

    static Map<String, Object> fifoDead() throws Exception {
        List<String> deliveries = Collections.synchronizedList(new ArrayList<>());
        try (Producer producer = producer("fifo-dead")) {
            for (int i = 0; i < 2; i++) {
                producer.send(message("fifo-dead", i).setMessageGroup("group").build());
            }
            try (PushConsumer ignored = push("fifo-dead", view -> {
                deliveries.add(body(view) + "/" + view.getDeliveryAttempt());
                return body(view).equals("body-0") ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })) {
                until(() -> deliveries.stream().anyMatch(each -> each.startsWith("body-1")));
            }
        }
        return saw("deliveries", deliveries);
    }

    static Map<String, Object> delay() throws Exception {
        try (Producer producer = producer("delay"); SimpleConsumer consumer = simple("delay", all())) {
            long due = System.currentTimeMillis() + 4000;
            producer.send(message("delay", 0).setDeliveryTimestamp(due).build());
            MessageView view = receive(consumer, 1, INVISIBLE).get(0);
            long late = System.currentTimeMillis() - due;
            consumer.ack(view);
            return saw("messages", shapes(List.of(view)), "early", late < -1000, "late", late > 5000,
                "dueAsSent", view.getDeliveryTimestamp().map(stamp -> Math.abs(stamp - due) <= 1000).orElse(false));
        }
    }

    static Map<String, Object> recall() throws Exception {
        try (Producer producer = producer("recall"); SimpleConsumer consumer = simple("recall", all())) {
            long now = System.currentTimeMillis();
            SendReceipt first = producer.send(message("recall", 0).setDeliveryTimestamp(now + 6000).build());
            producer.send(message("recall", 1).setDeliveryTimestamp(now + 8000).build());
            boolean same = producer.recallMessage(topic("recall"), first.getRecallHandle()).getMessageId()
                .equals(first.getMessageId());
            List<MessageView> got = receive(consumer, 1, INVISIBLE);
            consumer.ack(got.get(0));
            return saw("came", bodies(got), "recalledId", same, "badHandle",
                failure(() -> producer.recallMessage(topic("recall"), "bm90aGluZw==")),
                "afterAck", consumer.receive(16, SHORTEST).size());
        }
    }

    static Map<String, Object> transaction() throws Exception {
        Collection<Map<String, Object>> checked = new ConcurrentLinkedQueue<>();
        Map<String, Integer> asked = new ConcurrentHashMap<>();
        TransactionChecker checker = view -> {
            int times = asked.merge(body(view), 1, Integer::sum);
            if (times == 1 && List.of("body-2", "body-3", "body-4").contains(body(view))) {  // an end may be under way
                checked.add(shape(view));
            }
            if (body(view).equals("body-2")) {
                return TransactionResolution.COMMIT;
            }
            return body(view).equals("body-4") && times == 1 ? TransactionResolution.UNKNOWN : TransactionResolution.ROLLBACK;
        };
        ProducerBuilder builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(topic("transaction")).setTransactionChecker(checker);
        try (Producer producer = builder.build(); SimpleConsumer consumer = simple("transaction", all())) {
            for (int i = 0; i < 5; i++) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message("transaction", i).build(), transaction);
                if (i == 0) {
                    transaction.commit();
                } else if (i == 1) {
                    transaction.rollback();
                }
            }
            List<MessageView> got = receive(consumer, 2, INVISIBLE);
            for (MessageView each : got) {
                consumer.ack(each);
            }
            until(() -> asked.getOrDefault("body-3", 0) >= 1 && asked.getOrDefault("body-4", 0) >= 2);
            return saw("messages", shapes(got), "checked", sorted(checked),
                "afterAcks", consumer.receive(16, SHORTEST).size());
        }
    }

    static Map<String, Object> push() throws Exception {
        Map<String, List<Integer>> attempts = Collections.synchronizedMap(new TreeMap<>());
        Collection<Map<String, Object>> shapes = new ConcurrentLinkedQueue<>();
        try (Producer producer = producer("push")) {
            for (int i = 0; i < 12; i++) {
                producer.send(message("push", i).build());
            }
            try (PushConsumer ignored = push("push", view -> {
                synchronized (attempts) {
                    attempts.computeIfAbsent(body(view), key -> new ArrayList<>()).add(view.getDeliveryAttempt());
                }
                if (body(view).equals("body-3") && view.getDeliveryAttempt() == 1) {
                    return ConsumeResult.FAILURE;
                }
                shapes.add(shape(view));
                return ConsumeResult.SUCCESS;
            })) {
                until(() -> shapes.size() >= 12);
            }
        }
        return saw("attempts", attempts, "messages", sorted(shapes));
    }

    static Map<String, Object> slow() throws Exception {
        Map<String, List<Integer>> attempts = Collections.synchronizedMap(new TreeMap<>());
        Collection<String> consumed = new ConcurrentLinkedQueue<>();
        try (Producer producer = producer("slow")) {
            for (int i = 0; i < 2; i++) {
                producer.send(message("slow", i).build());
            }
            try (PushConsumer ignored = push("slow", view -> {
                synchronized (attempts) {
                    attempts.computeIfAbsent(body(view), key -> new ArrayList<>()).add(view.getDeliveryAttempt());
                }
                if (view.getDeliveryAttempt() == 1) {
                    pause(SLOW_MS);
                    if (body(view).equals("body-1")) {
                        return ConsumeResult.FAILURE;
                    }
                }
                consumed.add(body(view));
                return ConsumeResult.SUCCESS;
            })) {
                until(() -> consumed.containsAll(List.of("body-0", "body-1")));
            }
        }
        return saw("attempts", attempts);
    }

    static Map<String, Object> dead() throws Exception {
        Collection<Integer> attempts = new ConcurrentLinkedQueue<>();
        try (Producer producer = producer("dead")) {
            producer.send(message("dead", 0).build());
            try (PushConsumer ignored = push("dead", view -> {
                attempts.add(view.getDeliveryAttempt());
                return ConsumeResult.FAILURE;
            })) {
                until(() -> attempts.size() >= 2);
                System.in.readAllBytes();
            }
        }
        return saw("attempts", attempts);
    }

    static Map<String, Object> filter(String name, FilterExpression expression) throws Exception {
        try (Producer producer = producer(name); SimpleConsumer consumer = simple(name, expression)) {
            for (int i = 0; i < 12; i++) {
                producer.send(message(name, i).build());
            }
            int wanted = expression.getFilterExpressionType() == FilterExpressionType.TAG ? 8 : 2;
            List<MessageView> got = receive(consumer, wanted, INVISIBLE);
            for (MessageView each : got) {
                consumer.ack(each);
            }
            return saw("bodies", bodies(got).stream().sorted().collect(Collectors.toList()),
                "afterAcks", consumer.receive(16, SHORTEST).size());
        }
    }

    static Map<String, Object> priority() throws Exception {
        try (Producer producer = producer("priority")) {
            for (int i = 0; i < 6; i++) {
                producer.send(message("priority", i).setPriority(1 + i % 3).build());
            }
            List<Integer> order = new ArrayList<>();
            try (SimpleConsumer consumer = simple("priority", all())) {
                for (int i = 0; i < 6; i++) {
                    MessageView view = receive(consumer, 1, INVISIBLE).get(0);
                    order.add(view.getPriority().orElse(-1));
                    consumer.ack(view);
                }
            }
            return saw("order", order);
        }
    }

    static Map<String, Object> errors() throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setMaxAttempts(1).build()) {
            saw.put("missingTopic", failure(() -> producer.send(message("missing", 0).build())));
            saw.put("fifoToNormal", failure(() -> producer.send(message("errors", 0).setMessageGroup("group").build())));
            saw.put("normalToFifo", failure(() -> producer.send(message("fifo-push", 0).build())));
            saw.put("tooFarAhead", failure(() -> producer.send(
                message("delay", 0).setDeliveryTimestamp(System.currentTimeMillis() + 100L * 86_400_000).build())));
        }
        saw.put("missingGroup", failure(() -> {
            try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup("missing").setAwaitDuration(AWAIT)
                .setSubscriptionExpressions(Map.of(topic("errors"), all())).build()) {
                return consumer.receive(1, SHORTEST);
            }
        }));
        saw.put("badSql", failure(() -> {
            try (SimpleConsumer consumer = simple("errors", new FilterExpression("i >", FilterExpressionType.SQL92))) {
                return consumer.receive(1, SHORTEST);
            }
        }));
        return saw;
    }

    static void steady(String topic, int groups) throws Exception {
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(topic)
            .setSubscriptionExpressions(Map.of(topic, all())).setMessageListener(view -> {
                line("got", body(view));
                pause(WORK_MS);
                return ConsumeResult.SUCCESS;
            }).build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
        Thread input = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        });
        input.start();
        for (int i = 0; input.isAlive(); i++) {
            String body = "java-" + i;
            MessageBuilder message = PROVIDER.newMessageBuilder().setTopic(topic).setKeys(body)
                .setBody(body.getBytes(StandardCharsets.UTF_8));
            try {
                producer.send((groups > 0 ? message.setMessageGroup("group-" + i % groups) : message).build());
                line("ack", body);
            } catch (ClientException error) {
                line("fail", body + " " + String.valueOf(error.getMessage()).replace('\n', ' '));
            }
            pause(20);
        }
        producer.close();
        Thread.currentThread().join();
        consumer.close();
    }

    static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    static synchronized void line(String kind, String body) {
        System.out.println(kind + " " + System.currentTimeMillis() + " " + body);
    }

    static String topic(String scenario) {
        return CLIENT + "-" + scenario;
    }

    static MessageBuilder message(String scenario, int i) {
        return PROVIDER.newMessageBuilder().setTopic(topic(scenario)).setTag("ABC".substring(i % 3, i % 3 + 1))
            .setKeys("k-" + i, "all").addProperty("i", "" + i).addProperty("name", "näme-" + i)
            .setBody(("body-" + i).getBytes(StandardCharsets.UTF_8));
    }

    static FilterExpression all() {
        return new FilterExpression("*");
    }

    static Producer producer(String scenario) throws ClientException {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic(scenario)).build();
    }

    static SimpleConsumer simple(String scenario, FilterExpression expression) throws ClientException {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(topic(scenario))
            .setAwaitDuration(AWAIT).setSubscriptionExpressions(Map.of(topic(scenario), expression)).build();
    }

    static PushConsumer push(String scenario, Function<MessageView, ConsumeResult> listener) throws ClientException {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(topic(scenario))
            .setSubscriptionExpressions(Map.of(topic(scenario), all())).setConsumptionThreadCount(4)
            .setMessageListener(listener::apply).build();
    }

    static List<MessageView> receive(SimpleConsumer consumer, int count, Duration invisible) throws Exception {
        List<MessageView> got = new ArrayList<>();
        until(() -> {
            try {
                got.addAll(consumer.receive(Math.min(16, count - got.size()), invisible));
            } catch (ClientException error) {
                throw new IllegalStateException(error);
            }
            return got.size() >= count;
        });
        return got;
    }

    /** What the first receive that brings anything brings. */
    static List<MessageView> receiveOnce(SimpleConsumer consumer, int count, Duration invisible) throws Exception {
        List<MessageView> got = new ArrayList<>();
        until(() -> {
            try {
                got.addAll(consumer.receive(count, invisible));
            } catch (ClientException error) {
                throw new IllegalStateException(error);
            }
            return !got.isEmpty();
        });
        return got;
    }

    static void until(BooleanSupplier condition) throws Exception {
        long deadline = System.currentTimeMillis() + WAIT_MS;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IOException("not within " + WAIT_MS + " ms");
            }
            Thread.sleep(20);
        }
    }

    static double seconds(long since) {
        return (System.nanoTime() - since) / 1e9;
    }

    static String failure(Callable<?> attempt) {
        try {
            return "none, but " + attempt.call();
        } catch (ClientException error) {
            return String.valueOf(error.getMessage());
        } catch (Exception error) {
            return error.getClass().getSimpleName() + ": " + error.getMessage();
        }
    }

    static String body(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    static List<String> bodies(List<MessageView> views) {
        return views.stream().map(Flow::body).collect(Collectors.toList());
    }

    static Map<String, Object> shape(MessageView view) {
        return saw("body", body(view), "tag", view.getTag().orElse(null), "keys", view.getKeys().stream().sorted().collect(Collectors.toList()),
            "properties", new TreeMap<>(view.getProperties()), "group", view.getMessageGroup().orElse(null),
            "topic", view.getTopic(), "attempt", view.getDeliveryAttempt(), "born", view.getBornTimestamp() > 0);
    }

    static List<Object> shapes(List<MessageView> views) {
        return sorted(views.stream().map(Flow::shape).collect(Collectors.toList()));
    }

    static List<Object> sorted(Collection<Map<String, Object>> shapes) {
        return shapes.stream().sorted((a, b) -> String.valueOf(a.get("body")).compareTo(String.valueOf(b.get("body"))))
            .collect(Collectors.toList());
    }

    static Map<String, Object> saw(Object... pairs) {
        Map<String, Object> found = new TreeMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            found.put((String) pairs[i], pairs[i + 1]);
        }
        return found;
    }

    static String json(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (value instanceof Map) {
            return ((Map<?, ?>) value).entrySet().stream().map(each -> json(each.getKey()) + ":" + json(each.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof Collection) {
            return ((Collection<?>) value).stream().map(Flow::json).collect(Collectors.joining(",", "[", "]"));
        }
        StringBuilder text = new StringBuilder("\"");
        for (char each : value.toString().toCharArray()) {
            if (each == '"' || each == '\\') {
                text.append('\\').append(each);
            } else if (each < 32) {
                text.append(String.format("\\u%04x", (int) each));
            } else {
                text.append(each);
            }
        }
        return text.append('"').toString();
    }
}
