"""The scenarios of README.md with the Python client of RocketMQ 5: `flow.py ENDPOINTS [SCENARIO ...]`.

Topics and groups exist already, as `python-SCENARIO`. Prints one JSON line for each scenario; scenarios run side by side.
`dead` consumes until the input ends. `flow.py ENDPOINTS steady TOPIC` sends and consumes in lines, as `Flow.java` does.
"""
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception import ClientException

CLIENT = "python"
AWAIT, INVISIBLE, SHORTEST, WAIT, SLOW, WORK = 5, 30, 10, 90, 30, 0.1
SQL = FilterExpression("i > 5 AND TAGS = 'A'", FilterType.SQL)
ended = threading.Event()


def configuration():
    return ClientConfiguration(sys.argv[1], Credentials(), request_timeout=10)


def normal():
    with producer("normal") as sender, simple("normal") as consumer:
        ids = {}
        for i in range(12):
            ids[f"body-{i}"] = sender.send(message("normal", i)).message_id
        got = receive(consumer, 12)
        for each in got:
            consumer.ack(each)
        same = all(each.message_id == ids[body(each)] for each in got)
        return {"messages": shapes(got), "idsAsSent": same, "afterAcks": len(consumer.receive(16, SHORTEST))}


def again():
    with producer("again") as sender, simple("again") as consumer:
        sender.send(message("again", 0))
        first = receive(consumer, 1, SHORTEST)[0]
        received = time.monotonic()
        second = receive(consumer, 1, SHORTEST)[0]
        early = time.monotonic() - received < 9
        consumer.change_invisible_duration(second, 3)
        changed = time.monotonic()
        third = receive(consumer, 1)[0]
        early = early or time.monotonic() - changed < 2
        late = failure(lambda: consumer.ack(first))
        consumer.ack(third)
        return {
            "attempts": [each.delivery_attempt for each in (first, second, third)],
            "tooEarly": early,
            "sameId": first.message_id == third.message_id,
            "expiredHandle": late,
            "afterAck": len(consumer.receive(16, SHORTEST)),
        }


def fifo_push():
    order, attempts = {}, []
    with producer("fifo-push") as sender:
        for i in range(12):
            sender.send(message("fifo-push", i, message_group=f"group-{i % 3}"))

        def listen(got):
            if body(got) == "body-4":
                attempts.append(f"body-4/{got.delivery_attempt}")
                if len(attempts) == 1:
                    return ConsumeResult.FAILURE
            order.setdefault(got.message_group, []).append(body(got))
            return ConsumeResult.SUCCESS

        with push("fifo-push", listen):
            until(lambda: {"body-9", "body-10", "body-11"} <= set(sum(order.values(), [])))
    return {"order": order, "attempts": attempts}


def fifo_simple():
    with producer("fifo-simple") as sender, simple("fifo-simple") as consumer:
        for i in range(4):
            sender.send(message("fifo-simple", i, message_group="group"))
        first = receive_once(consumer, 2, INVISIBLE)
        blocked = [body(each) for each in consumer.receive(2, INVISIBLE)]
        for each in first:
            consumer.ack(each)
        second = receive_once(consumer, 2, SHORTEST)
        third = receive_once(consumer, 2, INVISIBLE)
        for each in third:
            consumer.ack(each)
        return {
            "first": [body(each) for each in first],
            "whileHeld": blocked,
            "second": [body(each) for each in second],
            "again": [body(each) for each in third],
            "attempts": [each.delivery_attempt for each in third],
            "afterAcks": len(consumer.receive(2, SHORTEST)),
        }


def fifo_dead():
    deliveries = []
    with producer("fifo-dead") as sender:
        for i in range(2):
            sender.send(message("fifo-dead", i, message_group="group"))

        def listen(got):
            deliveries.append(f"{body(got)}/{got.delivery_attempt}")
            return ConsumeResult.FAILURE if body(got) == "body-0" else ConsumeResult.SUCCESS

        with push("fifo-dead", listen):
            until(lambda: any(each.startswith("body-1") for each in deliveries))
    return {"deliveries": deliveries}


def delay():
    with producer("delay") as sender, simple("delay") as consumer:
        due = int(time.time()) + 4  # the client's unit: seconds
        sender.send(message("delay", 0, delivery_timestamp=due))
        got = receive(consumer, 1)[0]
        late = time.time() - due
        consumer.ack(got)
        return {
            "messages": shapes([got]),
            "early": late < -1,
            "late": late > 5,
            "dueAsSent": abs(got.delivery_timestamp - due * 1000) <= 1000,
        }


def recall():
    with producer("recall") as sender, simple("recall") as consumer:
        now = int(time.time())
        first = sender.send(message("recall", 0, delivery_timestamp=now + 6))
        sender.send(message("recall", 1, delivery_timestamp=now + 8))
        same = sender.recall_message(topic("recall"), first.recall_handle) == first.message_id
        got = receive(consumer, 1)
        consumer.ack(got[0])
        return {
            "came": [body(each) for each in got],
            "recalledId": same,
            "badHandle": failure(lambda: sender.recall_message(topic("recall"), "bm90aGluZw==")),
            "afterAck": len(consumer.receive(16, SHORTEST)),
        }


def transaction():
    checked, asked = [], {}

    class Checker(TransactionChecker):
        def check(self, got):
            times = asked[body(got)] = asked.get(body(got), 0) + 1
            if times == 1 and body(got) in ("body-2", "body-3", "body-4"):  # an end may be under way
                checked.append(shape(got))
            if body(got) == "body-2":
                return TransactionResolution.COMMIT
            if body(got) == "body-4" and times == 1:
                return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
            return TransactionResolution.ROLLBACK

    sender = Producer(configuration(), (topic("transaction"),), checker=Checker())
    with running(sender), simple("transaction") as consumer:
        for i in range(5):
            begun = sender.begin_transaction()
            sender.send(message("transaction", i), begun)
            if i == 0:
                begun.commit()
            elif i == 1:
                begun.rollback()
        got = receive(consumer, 2)
        for each in got:
            consumer.ack(each)
        until(lambda: asked.get("body-3", 0) >= 1 and asked.get("body-4", 0) >= 2)
        return {
            "messages": shapes(got),
            "checked": sorted(checked, key=lambda each: each["body"]),
            "afterAcks": len(consumer.receive(16, SHORTEST)),
        }


def push_scenario():
    attempts, seen, lock = {}, [], threading.Lock()
    with producer("push") as sender:
        for i in range(12):
            sender.send(message("push", i))

        def listen(got):
            with lock:
                attempts.setdefault(body(got), []).append(got.delivery_attempt)
            if body(got) == "body-3" and got.delivery_attempt == 1:
                return ConsumeResult.FAILURE
            seen.append(got)
            return ConsumeResult.SUCCESS

        with push("push", listen):
            until(lambda: len(seen) >= 12)
    return {"attempts": attempts, "messages": shapes(seen)}


def slow():
    attempts, consumed, lock = {}, [], threading.Lock()
    with producer("slow") as sender:
        for i in range(2):
            sender.send(message("slow", i))

        def listen(got):
            with lock:
                attempts.setdefault(body(got), []).append(got.delivery_attempt)
            if got.delivery_attempt == 1:
                time.sleep(SLOW)
                if body(got) == "body-1":
                    return ConsumeResult.FAILURE
            consumed.append(body(got))
            return ConsumeResult.SUCCESS

        with push("slow", listen):
            until(lambda: {*consumed} == {"body-0", "body-1"})
    return {"attempts": attempts}


def dead():
    attempts = []
    with producer("dead") as sender:
        sender.send(message("dead", 0))

        def listen(got):
            attempts.append(got.delivery_attempt)
            return ConsumeResult.FAILURE

        with push("dead", listen):
            until(lambda: len(attempts) >= 2)
            ended.wait(WAIT)
    return {"attempts": attempts}


def filtered(name, expression, wanted):
    with producer(name) as sender, simple(name, expression) as consumer:
        for i in range(12):
            sender.send(message(name, i))
        got = receive(consumer, wanted)
        for each in got:
            consumer.ack(each)
        return {"bodies": sorted(body(each) for each in got), "afterAcks": len(consumer.receive(16, SHORTEST))}


def priority():
    with producer("priority") as sender:
        for i in range(6):
            sender.send(message("priority", i, priority=1 + i % 3))
        order = []
        with simple("priority") as consumer:
            for _ in range(6):
                got = receive(consumer, 1)[0]
                order.append(got.priority)
                consumer.ack(got)
        return {"order": order}


def errors():
    saw = {}
    sender = Producer(configuration(), (topic("errors"),))
    with running(sender):
        saw["missingTopic"] = failure(lambda: sender.send(message("missing", 0)))
        saw["fifoToNormal"] = failure(lambda: sender.send(message("errors", 0, message_group="group")))
        saw["normalToFifo"] = failure(lambda: sender.send(message("fifo-push", 0)))
        far = int(time.time()) + 100 * 86_400
        saw["tooFarAhead"] = failure(lambda: sender.send(message("delay", 0, delivery_timestamp=far)))

    def bad_sql():
        with simple("errors", FilterExpression("i >", FilterType.SQL)) as consumer:
            time.sleep(2)  # until the proxy has the client's settings
            return consumer.receive(1, SHORTEST)

    def unknown_group():
        with simple("errors", group="missing") as consumer:
            time.sleep(2)  # the same
            return consumer.receive(1, SHORTEST)

    saw["badSql"] = failure(bad_sql)
    saw["missingGroup"] = failure(unknown_group)
    return saw


def steady(name):
    """Lines `ack`, `fail` and `got` until the input ends; then it sends no more, and ends when it is killed."""

    class Listener(MessageListener):
        def consume(self, got):
            line("got", body(got))
            time.sleep(WORK)
            return ConsumeResult.SUCCESS

    consumer = PushConsumer(configuration(), name, Listener(), {name: FilterExpression()}, consumption_thread_count=20)
    sender = Producer(configuration(), (name,))
    with running(consumer), running(sender):
        number = 0
        while not ended.is_set():
            made = Message()
            made.topic, made.body, made.keys = name, f"python-{number}".encode(), f"python-{number}"
            try:
                sender.send(made)
                line("ack", f"python-{number}")
            except Exception as error:  # the client has a class for each kind of failure
                line("fail", f"python-{number} {error}".replace("\n", " "))
            number += 1
            time.sleep(0.02)
        threading.Event().wait()


def line(kind, text):
    sys.stdout.write(f"{kind} {time.time():.3f} {text}\n")
    sys.stdout.flush()


SCENARIOS = {
    "normal": normal,
    "again": again,
    "fifo-push": fifo_push,
    "fifo-simple": fifo_simple,
    "fifo-dead": fifo_dead,
    "delay": delay,
    "recall": recall,
    "transaction": transaction,
    "push": push_scenario,
    "slow": slow,
    "dead": dead,
    "filter-tag": lambda: filtered("filter-tag", FilterExpression("A || C"), 8),
    "filter-sql": lambda: filtered("filter-sql", SQL, 2),
    "priority": priority,
    "errors": errors,
}


def topic(scenario):
    return f"{CLIENT}-{scenario}"


def message(scenario, i, **given):
    made = Message()
    made.topic = topic(scenario)
    made.body = f"body-{i}".encode()
    made.tag = "ABC"[i % 3]
    made.keys = f"k-{i}"
    made.keys = "all"
    made.add_property("i", str(i))
    made.add_property("name", f"näme-{i}")
    for name, value in given.items():
        setattr(made, name, value)
    return made


@contextmanager
def running(client):
    client.startup()
    try:
        yield client
    finally:
        client.shutdown()


def producer(scenario):
    return running(Producer(configuration(), (topic(scenario),)))


def simple(scenario, expression=None, group=None):
    subscription = {topic(scenario): expression or FilterExpression()}
    return running(SimpleConsumer(configuration(), group or topic(scenario), subscription, await_duration=AWAIT))


def push(scenario, listen):
    class Listener(MessageListener):
        def consume(self, got):
            return listen(got)

    return running(
        PushConsumer(
            configuration(), topic(scenario), Listener(), {topic(scenario): FilterExpression()}, consumption_thread_count=4
        )
    )


def received(consumer, count, invisible):
    """One receive; none where the proxy got it before the client's settings, which the client does not wait for."""
    try:
        return consumer.receive(count, invisible)
    except ClientException as error:
        if '"settings" is null' not in str(error):
            raise
        return []


def receive(consumer, count, invisible=INVISIBLE):
    got = []

    def enough():
        got.extend(received(consumer, min(16, count - len(got)), invisible))
        return len(got) >= count

    until(enough)
    return got


def receive_once(consumer, count, invisible):
    """What the first receive that brings anything brings."""
    got = []

    def something():
        got.extend(received(consumer, count, invisible))
        return got

    until(something)
    return got


def until(condition):
    deadline = time.monotonic() + WAIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT} s")
        time.sleep(0.02)


def failure(attempt):
    try:
        return f"none, but {attempt()}"
    except Exception as error:  # the client has a class for each kind of failure
        return f"{type(error).__name__}: {error}"


def body(got):
    return got.body.decode()


def shape(got):
    return {
        "body": body(got),
        "tag": got.tag,
        "keys": sorted(got.keys),
        "properties": dict(got.properties),
        "group": got.message_group or None,
        "topic": got.topic,
        "attempt": got.delivery_attempt,
        "born": got.born_timestamp > 0,
    }


def shapes(messages):
    return sorted(map(shape, messages), key=lambda each: each["body"])


def wait_for_end():
    sys.stdin.read()
    ended.set()


def run(name):
    try:
        return {"scenario": name, "saw": SCENARIOS[name]()}
    except Exception as error:
        return {"scenario": name, "error": f"{type(error).__name__}: {error}"}


def main():
    threading.Thread(target=wait_for_end, daemon=True).start()
    if sys.argv[2:3] == ["steady"]:
        steady(sys.argv[3])
    names = sys.argv[2:] or list(SCENARIOS)
    failed = False
    with ThreadPoolExecutor(len(names)) as pool:
        for line in pool.map(run, names):
            failed = failed or "error" in line
            print(json.dumps(line, sort_keys=True, ensure_ascii=False), flush=True)
    os._exit(1 if failed else 0)  # threads of the client go on


main()
