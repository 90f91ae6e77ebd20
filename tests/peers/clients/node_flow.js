// The Node client `ali-ons` 3.12.0 sends and consumes until its input ends.
// NODE_PATH=<node_modules of `fetch clients`> node node_flow.js NAMESRV TOPIC. The topic must exist. Lines: `ack MS BODY`,
// `fail MS BODY`, `got MS BODY`; after the end of its input it sends no more, and ends when it is killed.
'use strict';
const { Consumer, Producer, Message } = require('ali-ons');
const [ nameSrv, topic ] = process.argv.slice(2);
const PAUSE_MS = 20;
const quiet = { info() {}, warn() {}, debug() {}, error(e) { console.error(String(e && e.message || e)); } };
const common = { nameSrv, logger: quiet, httpclient: { request() { throw new Error('no address server'); } } };
let ended = false;

function tell(kind, body) {
  console.log(kind, Date.now(), body);
}

async function produce() {
  const producer = new Producer({ ...common, producerGroup: 'node-flow-producer' });
  producer.on('error', e => quiet.error(e));
  await producer.ready();
  for (let i = 0; !ended; i++) {
    const body = `node-${i}`;
    const m = new Message(topic, 'NODE', body);
    m.keys = [ body ];
    try {
      const r = await producer.send(m);
      tell(r.sendStatus === 'SEND_OK' ? 'ack' : 'fail', body);
    } catch (e) {
      quiet.error(e);
      tell('fail', body);
    }
    await new Promise(done => setTimeout(done, PAUSE_MS));
  }
}

async function main() {
  const consumer = new Consumer({ ...common, consumerGroup: 'node-flow-consumer', consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  consumer.subscribe(topic, '*', async m => { tell('got', m.body.toString()); });
  consumer.on('error', e => quiet.error(e));
  await consumer.ready();
  await produce();
}
process.stdin.on('end', () => { ended = true; }).resume();
main().catch(e => { quiet.error(e); process.exit(1); });
