"""A transactional outbox: messages that are sent if, and only if, a business transaction commits.

`Outbox.add` writes a row into the application's own database, in the transaction that changes its data. An
`OutboxSender` reads rows and sends them through an `OrderedProducer`. What is promised:

* A message of a transaction that was rolled back is never sent.
* **Every committed message is stored at least once.** After a crash between a send and the deletion of its
  row the row is sent again. So the subject has 1, 2, 3, 3, 4: among the outbox's messages a repetition comes
  **directly behind** the first one within its logical partition, never later, for row n + 1 of a logical
  partition is not sent before row n is confirmed and deleted. The property `OUTBOX_ID` is the same in a
  repetition: a consumer that remembers the last one of each key, and skips an equal one, handles each message
  once.
* **The order of a key is the order of the rows.** That is the order of the commits if transactions of one key
  exclude each other: let `add` come behind a lock of the row that the key stands for (an update of it, or
  `SELECT … FOR UPDATE`). Transactions that run at the same time without one have no order. Row ids must grow
  in the order in which they are given: no caches of sequences.
* **One process sends at a time**, the others wait. The owner of the row in `brokerset_outbox_lease` has an
  epoch. A process that was paused and woke up as a former owner can delete nothing, and what it still sends
  under the epoch of its producer comes before what the new owner sends, or is refused by the broker.

Under Strict all of this holds over failovers of brokers and new partitions, too. Under BestTried the producer
may store a message on another partition, so that order may be lost.

It needs the extra `brokerset[outbox]` (SQLAlchemy 2); `tables` says which databases are meant, and which of
them is tested. Nothing else in brokerset imports this package.
"""
