"""The C++ client, through its wheel `rocketmq` 0.4.4, sends and consumes until its input ends.

Run with the interpreter of `fetch clients`: venv/bin/python cpp_flow.py NAMESRV TOPIC. The topic must exist. Lines: `ack MS BODY`,
`fail MS BODY`, `got MS BODY`; after the end of its input it sends no more, and ends when it is killed.
"""
import sys
import threading
import time

from rocketmq.client import Message, Producer, PushConsumer

namesrv, topic = sys.argv[1], sys.argv[2]
PAUSE_SECONDS = 0.02
lock = threading.Lock()
ended = threading.Event()


def tell(kind: str, body: str) -> None:
    with lock:
        print(kind, int(time.time() * 1000), body, flush=True)


def produce() -> None:
    producer = Producer("cpp-flow-producer")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    number = 0
    while not ended.wait(PAUSE_SECONDS):
        body = f"cpp-{number}"
        number += 1
        message = Message(topic)
        message.set_keys(body)
        message.set_body(body)
        try:
            status = producer.send_sync(message).status.name
        except Exception:  # the client tells every failure by another class
            status = "failed"
        tell("ack" if status == "OK" else "fail", body)


def on_message(got) -> None:
    tell("got", got.body.decode())


consumer = PushConsumer("cpp-flow-consumer")
consumer.set_namesrv_addr(namesrv)
consumer.subscribe(topic, on_message)
consumer.start()
threading.Thread(target=produce, daemon=True).start()
sys.stdin.read()
ended.set()
threading.Event().wait()
