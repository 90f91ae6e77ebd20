"""Mistakes in request-reply: in brokers, and in the client."""

from __future__ import annotations

from tests.mutation.table import Mutation

_BROKER = "broker/brokerset_broker/requests/reply_messages.py"
_REQUESTER = "libs/brokerset_client/request_reply.py"
_TABLE = "libs/brokerset_client/replies.py"
_UNIT = "tests/unit/broker/requests/test_reply_messages.py::"
_CLIENT = "tests/unit/client/test_replies.py::"
_BOTH = "tests/integration/client/test_request_reply.py::"

REPLIES = (
    Mutation(
        name="reply-stored-again",
        breaks="A reply that is sent again is stored again.",
        path=_BROKER,
        old="place = self._stored.get(key)",
        new="place = None",
        caught_by=_UNIT + "test_a_reply_that_is_sent_again_is_not_stored_again",
    ),
    Mutation(
        name="lost-reply-remembered",
        breaks="A reply that was lost counts as stored when it comes again.",
        path=_BROKER,
        old="                self._stored.pop(key, None)\n",
        new="",
        caught_by=_UNIT + "test_an_answer_names_a_place_only_when_it_is_durable",
    ),
    Mutation(
        name="reply-place-before-durable",
        breaks="An answer names the place of a reply that is not stored.",
        path=_BROKER,
        old="if durable is not None and await durable not in STORED:",
        new="if False:",
        caught_by=_UNIT + "test_an_answer_names_a_place_only_when_it_is_durable",
    ),
    Mutation(
        name="pushes-unbounded",
        breaks="Replies to clients that take none fill the memory.",
        path=_BROKER,
        old="if self.pushes >= PUSHES_MAX or self.push_bytes + size > PUSH_BYTES_MAX:",
        new="if False:",
        caught_by=_UNIT + "test_replies_on_their_way_are_bounded",
    ),
    Mutation(
        name="pushes-never-end",
        breaks="A reply counts as being on its way after its client has answered.",
        path=_BROKER,
        old="            self.pushes -= 1\n",
        new="            pass\n",
        caught_by=_UNIT + "test_a_client_that_does_not_take_a_reply_is_named",
    ),
    Mutation(
        name="reply-compression-forgotten",
        breaks="The body of a stored reply cannot be opened.",
        path=_BROKER,
        old="                sys_flag=header.sys_flag & PLAIN_BITS,\n                born_timestamp",
        new="                sys_flag=0,\n                born_timestamp",
        caught_by=_UNIT + "test_a_reply_is_stored_as_java_stores_it",
    ),
    Mutation(
        name="late-reply-taken",
        breaks="Whoever replies too late does not hear of it.",
        path=_TABLE,
        old="            if correlation_id in self._answered:\n",
        new="            if True:\n",
        caught_by=_CLIENT + "test_a_reply_that_nobody_waits_for_is_refused",
    ),
    Mutation(
        name="request-never-forgotten",
        breaks="A request that timed out waits permanently.",
        path=_REQUESTER,
        old="            replies.forget(correlation_id)\n",
        new="",
        caught_by=_BOTH + "test_a_reply_to_a_client_that_has_gone_is_refused_and_stored_once",
    ),
    Mutation(
        name="reply-brokers-unaware",
        breaks="Only the brokers of the topic know a client that waits, as in Java.",
        path=_REQUESTER,
        old="for cluster in route.clusters if route is not None else ():",
        new="for cluster in ():",
        caught_by=_BOTH + "test_a_reply_comes_over_whichever_broker_it_is_sent_to",
    ),
    Mutation(
        name="waits-unknown-to-new-master",
        breaks="A client that waits does not make itself known to a new master.",
        path=_REQUESTER,
        old="                self._watch()\n",
        new="                pass\n",
        caught_by=_BOTH + "test_a_reply_after_the_requests_master_has_gone_is_delivered",
    ),
    Mutation(
        name="one-id-for-each-try",
        breaks="Each try of a reply has an id of its own, so brokers store it again and again.",
        path="libs/brokerset_client/producer.py",
        old="        return await reply_to(self.instance, self, request, replace(made, system_properties=own), seconds)",
        new="        return await reply_to(self.instance, self, request, made, seconds)",
        caught_by=_BOTH + "test_a_reply_to_a_client_that_has_gone_is_refused_and_stored_once",
    ),
    Mutation(
        name="old-client-id-kept",
        breaks="A client that changes its id fills the table of producers.",
        path="broker/brokerset_broker/tables/producers.py",
        old="                self._forget_id(client.client_id, channel)\n            entry",
        new="                pass\n            entry",
        caught_by="tests/unit/broker/tables/test_client_tables.py::"
        "test_a_channel_that_changes_its_client_id_leaves_nothing_behind",
    ),
)
