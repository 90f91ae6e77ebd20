"""Groups with brokers of both makes whose master goes to and fro between the makes: which mixes there are, and which run today.

A mix is named after its controllers, its brokers (o: ours, j: Java's) and its name servers. Everything in a mix is real: the brokers,
the controllers, the name servers, a Java producer and a Java consumer that work all the time. See `mixed_switches` for what is done to
the master and `mixed_checks` for what must be true afterwards.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from brokerset_rig import controller_parts, mixed_switches, stack
from brokerset_rig.controller_parts import Add
from brokerset_rig.mixed_work import WAYS
from brokerset_rig.replicated_group import Group

OURS, JAVA = "ours", "Java"
MIXES_A_DAY = 2
NO_NAME_SERVER = {"enableNameServer": "false"}


@dataclass(frozen=True, slots=True)
class Mix:
    """Who runs what, and the sentence that a good run proves."""

    controllers: str
    brokers: tuple[str, ...]
    name_servers: tuple[str, ...]
    proves: str

    @property
    def name(self) -> str:
        """As `--mixes` spells it: `ours-oj-both`."""
        letters = "".join(make[0].lower() for make in self.brokers)
        names = "both" if len(self.name_servers) > 1 else self.name_servers[0].lower()
        return f"{self.controllers.lower()}-{letters}-{names}"


PAIR, OF_OURS, OF_JAVA, BOTH = (OURS, JAVA), (OURS, OURS, JAVA), (OURS, JAVA, JAVA), (OURS, JAVA)
MIXES = (
    Mix(OURS, PAIR, (OURS,), "one broker of each make under our controllers: whoever leads, and however it ends, nothing acknowledged is lost"),
    Mix(JAVA, PAIR, (JAVA,), "one broker of ours in a cluster that is Java's otherwise: it leads and follows as Java's do"),
    Mix(OURS, OF_OURS, BOTH, "a Java broker next to two of ours: clients that know a name server of each make go on while either is gone"),
    Mix(JAVA, OF_JAVA, BOTH, "the first broker of ours in a Java group, registered at name servers of both makes, of which either may be gone"),
    Mix(OURS, OF_JAVA, (JAVA,), "our controllers lead two Java brokers and one of ours; clients still ask Java's name server only"),
    Mix(JAVA, OF_OURS, (OURS,), "the last Java broker of a group under Java's controllers; clients ask our name server only"),
    Mix(OURS, OF_OURS, (OURS,), "the last Java broker of a set that is ours otherwise: it may stay for good"),
    Mix(JAVA, OF_JAVA, (JAVA,), "the first broker of ours in a group that is Java's otherwise, before anything else is taken over"),
    Mix(OURS, PAIR, BOTH, "the controllers are taken over, the rest is half way: one broker and one name server of each make"),
    Mix(JAVA, (OURS, OURS), (JAVA,), "two brokers of ours, and of Java's the controllers and the name server: without a lease nothing acknowledged is lost either"),
    Mix(JAVA, PAIR, BOTH, "Java's controllers still lead, the rest is half way: one broker and one name server of each make"),
)  # fmt: skip


def chosen(size: str, names: Sequence[str], day: datetime.date) -> list[Mix]:
    """The mixes of these names; without names all of them, or with `core` the two of the day of the year.

    Raises `ValueError` for a name that there is not.
    """
    known = {mix.name: mix for mix in MIXES}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no mix {', '.join(unknown)}; there are: {', '.join(known)}")
    if names:
        return [known[name] for name in names]
    if size == "all":
        return list(MIXES)
    first = (day.timetuple().tm_yday - 1) * MIXES_A_DAY
    return [MIXES[(first + number) % len(MIXES)] for number in range(MIXES_A_DAY)]


def run(add: Add, size: str, names: Sequence[str] = ()) -> None:
    """Run mixes one after the other; says first how the same ones run again."""
    today = datetime.datetime.now(datetime.UTC).date()
    mixes = chosen(size, names, today)
    print(
        f"        mixes: {', '.join(mix.name for mix in mixes)}; the same again:"
        f" python tests/interop/run.py --only mixed-groups --mixes {','.join(mix.name for mix in mixes)}",
        flush=True,
    )
    for mix in mixes:
        with members_of(mix) as found:
            mixed_switches.run(
                add, found, mix.name, mix.proves, WAYS[MIXES.index(mix) // MIXES_A_DAY % len(WAYS)]
            )


@contextmanager
def members_of(mix: Mix) -> Iterator[Group]:
    """The controllers and name servers of a mix run, and its brokers are there, not started."""
    with stack.Workspace("mixed") as folder, ExitStack() as running:
        ports = stack.free_ports(6 + len(mix.name_servers) + len(mix.brokers), below=2)
        controllers, embedded, rest = ports[:3], ports[3:6], ports[6:]
        inside = mix.controllers == OURS and mix.name_servers == (OURS,)
        make = stack.our_controllers if mix.controllers == OURS else stack.java_controllers
        settings = None if inside or mix.controllers == JAVA else NO_NAME_SERVER
        servers = make(folder, controllers, embedded, settings)
        if not inside:
            alone = [_name_server(make, folder, rest.pop(0)) for make in mix.name_servers]
            servers = replace(
                servers, others=alone, name_servers=";".join(server.address for server in alone)
            )
        running.enter_context(servers)
        found = Group(folder, servers, rest)

        def end() -> None:
            for member in found.members:
                controller_parts.kill_running(member.server)

        running.callback(end)
        for each in mix.brokers:
            found.add(each, start=False)
        yield found


def _name_server(make: str, folder: Path, port: int) -> stack.Server:
    maker = stack.our_namesrv if make == OURS else stack.java_namesrv
    return maker(folder / f"name-server-{make.lower()}", port)
