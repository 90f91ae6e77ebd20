// The scenarios of README.md with the Node client of RocketMQ 5: `node flow.js ENDPOINTS [SCENARIO ...]`.
//
// Topics and groups exist already, as `node-SCENARIO`. Prints one JSON line for each scenario; scenarios run side by side.
// `dead` consumes until the input ends.
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult, FilterExpression } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const CLIENT = 'node';
const [AWAIT, INVISIBLE, SHORTEST, WAIT, SLOW] = [5000, 30000, 10000, 90000, 30000];
const quiet = { debug() {}, info() {}, warn() {}, error() {} };
const common = { endpoints: process.argv[2], namespace: '', requestTimeout: 10000, logger: quiet };
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
let end;
const ended = new Promise(resolve => { end = resolve; });
process.stdin.on('end', end).resume();

async function normal() {
  return await using(producer('normal'), sender => using(simple('normal'), async consumer => {
    const ids = {};
    for (let i = 0; i < 12; i++) ids[`body-${i}`] = (await sender.send(message('normal', i))).messageId;
    const got = await receive(consumer, 12);
    for (const each of got) await consumer.ack(each);
    return { messages: shapes(got), idsAsSent: got.every(each => each.messageId === ids[body(each)]),
      afterAcks: (await consumer.receive(16, SHORTEST)).length };
  }));
}

async function again() {
  return await using(producer('again'), sender => using(simple('again'), async consumer => {
    await sender.send(message('again', 0));
    const [first] = await receive(consumer, 1, SHORTEST);
    const received = Date.now();
    const [second] = await receive(consumer, 1, SHORTEST);
    let early = Date.now() - received < 9000;
    await consumer.changeInvisibleDuration(second, 3000);
    const changed = Date.now();
    const [third] = await receive(consumer, 1);
    early = early || Date.now() - changed < 2000;
    const late = await failure(() => consumer.ack(first));
    await consumer.ack(third);
    return { attempts: [first, second, third].map(each => each.deliveryAttempt), tooEarly: early,
      sameId: first.messageId === third.messageId, expiredHandle: late,
      afterAck: (await consumer.receive(16, SHORTEST)).length };
  }));
}

async function fifoPush() {
  const order = {}, attempts = [];
  await using(producer('fifo-push'), async sender => {
    for (let i = 0; i < 12; i++) await sender.send(message('fifo-push', i, { messageGroup: `group-${i % 3}` }));
    await using(push('fifo-push', got => {
      if (body(got) === 'body-4') {
        attempts.push(`body-4/${got.deliveryAttempt}`);
        if (attempts.length === 1) return ConsumeResult.FAILURE;
      }
      (order[got.messageGroup] ??= []).push(body(got));
      return ConsumeResult.SUCCESS;
    }), () => until(() => [9, 10, 11].every(i => Object.values(order).flat().includes(`body-${i}`))));
  });
  return { order, attempts };
}

async function fifoSimple() {
  return await using(producer('fifo-simple'), sender => using(simple('fifo-simple'), async consumer => {
    for (let i = 0; i < 4; i++) await sender.send(message('fifo-simple', i, { messageGroup: 'group' }));
    const first = await receiveOnce(consumer, 2, INVISIBLE);
    const blocked = (await consumer.receive(2, INVISIBLE)).map(body);
    for (const each of first) await consumer.ack(each);
    const second = await receiveOnce(consumer, 2, SHORTEST);
    const third = await receiveOnce(consumer, 2, INVISIBLE);
    for (const each of third) await consumer.ack(each);
    return { first: first.map(body), whileHeld: blocked, second: second.map(body), again: third.map(body),
      attempts: third.map(each => each.deliveryAttempt), afterAcks: (await consumer.receive(2, SHORTEST)).length };
  }));
}

async function fifoDead() {
  const deliveries = [];
  await using(producer('fifo-dead'), async sender => {
    for (let i = 0; i < 2; i++) await sender.send(message('fifo-dead', i, { messageGroup: 'group' }));
    await using(push('fifo-dead', got => {
      deliveries.push(`${body(got)}/${got.deliveryAttempt}`);
      return body(got) === 'body-0' ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    }), () => until(() => deliveries.some(each => each.startsWith('body-1'))));
  });
  return { deliveries };
}

async function delay() {
  return await using(producer('delay'), sender => using(simple('delay'), async consumer => {
    const due = Date.now() + 4000;
    await sender.send(message('delay', 0, { deliveryTimestamp: new Date(due) }));
    const [got] = await receive(consumer, 1);
    const late = Date.now() - due;
    await consumer.ack(got);
    return { messages: shapes([got]), early: late < -1000, late: late > 5000,
      dueAsSent: Math.abs(Number(got.deliveryTimestamp) - due) <= 1000 };
  }));
}

async function recall() {
  return await using(producer('recall'), sender => using(simple('recall'), async consumer => {
    const now = Date.now();
    const first = await sender.send(message('recall', 0, { deliveryTimestamp: new Date(now + 6000) }));
    await sender.send(message('recall', 1, { deliveryTimestamp: new Date(now + 8000) }));
    const receipt = await sender.recallMessage(topic('recall'), first.recallHandle);
    const got = await receive(consumer, 1);
    await consumer.ack(got[0]);
    return { came: got.map(body), recalledId: receipt.messageId === first.messageId,
      badHandle: await failure(() => sender.recallMessage(topic('recall'), 'bm90aGluZw==')),
      afterAck: (await consumer.receive(16, SHORTEST)).length };
  }));
}

async function transaction() {
  const checked = [], asked = {};
  const checker = {
    async check(got) {
      const times = asked[body(got)] = (asked[body(got)] ?? 0) + 1;
      if (times === 1 && ['body-2', 'body-3', 'body-4'].includes(body(got))) checked.push(shape(got));
      if (body(got) === 'body-2') return TransactionResolution.COMMIT;
      return body(got) === 'body-4' && times === 1
        ? TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED : TransactionResolution.ROLLBACK;
    },
  };
  const sender = new Producer({ ...common, topics: [topic('transaction')], topic: topic('transaction'), checker });
  return await using(sender, () => using(simple('transaction'), async consumer => {
    for (let i = 0; i < 5; i++) {
      const begun = sender.beginTransaction();
      await sender.send(message('transaction', i), begun);
      if (i === 0) await begun.commit();
      else if (i === 1) await begun.rollback();
    }
    const got = await receive(consumer, 2);
    for (const each of got) await consumer.ack(each);
    await until(() => (asked['body-3'] ?? 0) >= 1 && (asked['body-4'] ?? 0) >= 2);
    return { messages: shapes(got), checked: byBody(checked), afterAcks: (await consumer.receive(16, SHORTEST)).length };
  }));
}

async function pushScenario() {
  const attempts = {}, seen = [];
  await using(producer('push'), async sender => {
    for (let i = 0; i < 12; i++) await sender.send(message('push', i));
    await using(push('push', got => {
      (attempts[body(got)] ??= []).push(got.deliveryAttempt);
      if (body(got) === 'body-3' && got.deliveryAttempt === 1) return ConsumeResult.FAILURE;
      seen.push(got);
      return ConsumeResult.SUCCESS;
    }), () => until(() => seen.length >= 12));
  });
  return { attempts, messages: shapes(seen) };
}

async function slow() {
  const attempts = {}, consumed = new Set();
  await using(producer('slow'), async sender => {
    for (let i = 0; i < 2; i++) await sender.send(message('slow', i));
    await using(push('slow', async got => {
      (attempts[body(got)] ??= []).push(got.deliveryAttempt);
      if (got.deliveryAttempt === 1) {
        await sleep(SLOW);
        if (body(got) === 'body-1') return ConsumeResult.FAILURE;
      }
      consumed.add(body(got));
      return ConsumeResult.SUCCESS;
    }), () => until(() => consumed.size === 2));
  });
  return { attempts };
}

async function dead() {
  const attempts = [];
  await using(producer('dead'), async sender => {
    await sender.send(message('dead', 0));
    await using(push('dead', got => {
      attempts.push(got.deliveryAttempt);
      return ConsumeResult.FAILURE;
    }), async () => {
      await until(() => attempts.length >= 2);
      await Promise.race([ended, sleep(WAIT)]);
    });
  });
  return { attempts };
}

async function filtered(name, expression, wanted) {
  return await using(producer(name), sender => using(simple(name, expression), async consumer => {
    for (let i = 0; i < 12; i++) await sender.send(message(name, i));
    const got = await receive(consumer, wanted);
    for (const each of got) await consumer.ack(each);
    return { bodies: got.map(body).sort(), afterAcks: (await consumer.receive(16, SHORTEST)).length };
  }));
}

async function priority() {
  return await using(producer('priority'), async sender => {
    for (let i = 0; i < 6; i++) await sender.send(message('priority', i, { priority: 1 + i % 3 }));
    return await using(simple('priority'), async consumer => {
      const order = [];
      for (let i = 0; i < 6; i++) {
        const [got] = await receive(consumer, 1);
        order.push(got.priority);
        await consumer.ack(got);
      }
      return { order };
    });
  });
}

async function errors() {
  const saw = {};
  await using(new Producer({ ...common, maxAttempts: 1 }), async sender => {
    saw.missingTopic = await failure(() => sender.send(message('missing', 0)));
    saw.fifoToNormal = await failure(() => sender.send(message('errors', 0, { messageGroup: 'group' })));
    saw.normalToFifo = await failure(() => sender.send(message('fifo-push', 0)));
    const far = new Date(Date.now() + 100 * 86400000);
    saw.tooFarAhead = await failure(() => sender.send(message('delay', 0, { deliveryTimestamp: far })));
  });
  saw.badSql = await failure(() => using(simple('errors', new FilterExpression('i >', FilterType.SQL)),
    async consumer => { await consumer.receive(1, SHORTEST); }));
  saw.missingGroup = await failure(() => using(simple('errors', FilterExpression.SUB_ALL, 'missing'),
    async consumer => { await consumer.receive(1, SHORTEST); }));
  return saw;
}

function topic(scenario) {
  return `${CLIENT}-${scenario}`;
}

function message(scenario, i, given = {}) {
  return { topic: topic(scenario), body: Buffer.from(`body-${i}`), tag: 'ABC'[i % 3], keys: [`k-${i}`, 'all'],
    properties: new Map([['i', `${i}`], ['name', `näme-${i}`]]), ...given };
}

async function using(client, work) {
  await client.startup();
  try {
    return await work(client);
  } finally {
    await client.shutdown();
  }
}

function producer(scenario) {
  return new Producer({ ...common, topics: [topic(scenario)], topic: topic(scenario) });
}

function simple(scenario, expression = FilterExpression.SUB_ALL, group = topic(scenario)) {
  return new SimpleConsumer({ ...common, consumerGroup: group, subscriptions: new Map([[topic(scenario), expression]]),
    awaitDuration: AWAIT });
}

function push(scenario, consume) {
  return new PushConsumer({ ...common, consumerGroup: topic(scenario), messageListener: { consume },
    subscriptions: new Map([[topic(scenario), FilterExpression.SUB_ALL]]) });
}

async function receive(consumer, count, invisible = INVISIBLE) {
  const got = [];
  await until(async () => {
    got.push(...await consumer.receive(Math.min(16, count - got.length), invisible));
    return got.length >= count;
  });
  return got;
}

// What the first receive that brings anything brings.
async function receiveOnce(consumer, count, invisible) {
  const got = [];
  await until(async () => {
    got.push(...await consumer.receive(count, invisible));
    return got.length > 0;
  });
  return got;
}

async function until(condition) {
  const deadline = Date.now() + WAIT;
  while (!await condition()) {
    if (Date.now() > deadline) throw new Error(`not within ${WAIT} ms`);
    await sleep(20);
  }
}

async function failure(attempt) {
  try {
    return `none, but ${JSON.stringify(await attempt())}`;
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
}

function body(got) {
  return got.body.toString();
}

function shape(got) {
  return { body: body(got), tag: got.tag, keys: [...got.keys].sort(), properties: Object.fromEntries(got.properties),
    group: got.messageGroup || null, topic: got.topic, attempt: got.deliveryAttempt, born: Number(got.bornTimestamp) > 0 };
}

function byBody(shapes) {
  return shapes.sort((a, b) => (a.body < b.body ? -1 : 1));
}

function shapes(messages) {
  return byBody(messages.map(shape));
}

const scenarios = {
  normal, again, 'fifo-push': fifoPush, 'fifo-simple': fifoSimple, 'fifo-dead': fifoDead, delay, recall, transaction,
  push: pushScenario, slow, dead,
  'filter-tag': () => filtered('filter-tag', new FilterExpression('A || C'), 8),
  'filter-sql': () => filtered('filter-sql', new FilterExpression("i > 5 AND TAGS = 'A'", FilterType.SQL), 2),
  priority, errors,
};

async function main() {
  const names = process.argv.length > 3 ? process.argv.slice(3) : Object.keys(scenarios);
  const lines = names.map(name => scenarios[name]().then(saw => ({ scenario: name, saw }),
    error => ({ scenario: name, error: `${error.name}: ${error.message}` })));
  let failed = false;
  for (const line of lines) {
    const done = await line;
    failed ||= 'error' in done;
    console.log(JSON.stringify(done));
  }
  process.exit(failed ? 1 : 0);
}

main();
