"""The suite `adopt`: a real Java cluster is taken over, given back, taken over again, and left for good."""

from __future__ import annotations

from contextlib import ExitStack

from brokerset_rig import adopt_finish, replicated_group
from brokerset_rig.adopt_parts import (
    BROKERS,
    TOPIC,
    Case,
    Producers,
    at_home,
    at_the_end,
    back_from_retire,
    back_from_switch,
    java_cluster,
    join,
    look,
    retire,
    settings_of,
    switch,
)
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.replicated_group import ready_topic
from brokerset_rig.replication_checks import make_metadata
from brokerset_rig.replication_clients import Flow


def run(add: Add, size: str) -> None:
    with replicated_group.group("adopt", BROKERS, java_cluster) as found, ExitStack() as running:
        case = Case(found)
        running.callback(case.end)
        with step(
            add, "a Java cluster runs: two brokers, three controllers, a name server, clients"
        ) as problems:
            found.panel.serving(60)
            java = [found.add("Java"), found.add("Java")]
            found.wait_in_sync()
            ready_topic(found)
            ready_topic(found, TOPIC)
            make_metadata(java[0] if found.master()[0] is java[0] else java[1], "of-java")
            consumer = running.enter_context(Flow(found, mode="consume", topic=TOPIC, group="adopt-group"))
            producers = Producers(found, running)
        if problems:
            return
        before = {member.port: settings_of(member) for member in java}
        look(add, case)
        join(add, case)
        switch(add, case, producers.now, before)
        retire(add, case, java)
        at_home(add, case, producers)
        back_from_retire(add, case, java, producers.now)
        if size == "all":
            back_from_switch(add, case, java, producers.now, before)
        at_the_end(add, case, java, producers, consumer)
        adopt_finish.run(add, case, java, producers, consumer, running)
