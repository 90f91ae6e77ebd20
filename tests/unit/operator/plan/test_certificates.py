"""When an authority and its certificate are made, renewed and given up: decisions alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from brokerset_operator.model.certificates import (
    CLOCK_SKEW_SECONDS,
    AuthoritySecret,
    Certificate,
    CertificateSecret,
    OwnCertificates,
)
from brokerset_operator.plan.certificates import (
    AuthorityChange,
    ChangeAuthority,
    Issue,
    WaitUntil,
    Wishes,
    decide_authority,
    decide_certificate,
)
from brokerset_runtime.tls.authority import CLOCK_SKEW

DAY = 86_400.0
SPREAD = 300.0
HOSTS = ("*.orders-0.shop.svc", "orders-namesrv.shop.svc")
WISHES = Wishes(hosts=HOSTS, spread_seconds=SPREAD)
CERTIFICATE_DAYS, AUTHORITY_DAYS = 90, 1825
NOW = 1_790_000_000.0


@dataclass
class Pod:
    """What it has read last of what its kubelet brings, some time late."""

    shows: str = ""
    trusts: frozenset[str] = frozenset()


@dataclass
class World:
    """One set: its Secrets and ConfigMap as values, and pods that read them at most `SPREAD` seconds late."""

    seed: int = 0
    now: float = NOW
    authority: AuthoritySecret | None = None
    certificate: CertificateSecret | None = None
    published: dict[str, tuple[Certificate, float]] = field(default_factory=dict)
    wishes: Wishes = WISHES
    history: list[tuple[float, str, frozenset[str]]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=lambda: [Pod() for _ in range(4)])

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.numbers = count(1)

    def make(self, what: str, days: float, hosts: tuple[str, ...] = ()) -> Certificate:
        name = f"{what}{next(self.numbers)}"
        return Certificate(
            fingerprint=name, made=self.now, not_after=self.now + days * DAY, names=frozenset(hosts), pem=name
        )

    def seen(self) -> OwnCertificates:
        return OwnCertificates(
            authority=self.authority, certificate=self.certificate, published=tuple(self.published.values())
        )

    def reconcile(self) -> None:
        """Decide, carry out, and publish, as the operator does in this order; then let pods read."""
        decided = decide_authority(self.seen(), self.wishes, self.now)
        if isinstance(decided, ChangeAuthority):
            self.change(decided)
        elif isinstance(issue := decide_certificate(self.seen(), self.wishes, self.now), Issue):
            self.done.append("issue")
            shown = self.make("c", CERTIFICATE_DAYS, tuple(self.wishes.hosts))
            self.certificate = CertificateSecret(
                version="1", shown=shown, signed_by=issue.authority, renewal=self.wishes.renewal
            )
        trusted = {each.fingerprint: each for each in self.seen().trusted}
        since = {name: at for name, (_, at) in self.published.items()}
        self.published = {
            name: (each, min(since.get(name, self.now), self.now)) for name, each in trusted.items()
        }
        signed_by = self.certificate.signed_by if self.certificate else ""
        self.history.append((self.now, signed_by or "", frozenset(trusted)))

    def change(self, decided: ChangeAuthority) -> None:
        self.done.append(decided.change.value)
        old, renewal = self.authority, self.wishes.authority_renewal
        match decided.change:
            case AuthorityChange.MAKE:
                signing = self.make("a", AUTHORITY_DAYS)
                self.authority = AuthoritySecret(
                    version="1", signing=signing, retired=decided.trusted, renewal=renewal
                )
            case AuthorityChange.PREPARE:
                assert old is not None
                following = self.make("a", AUTHORITY_DAYS)
                self.authority = replace(old, following=following, renewal=renewal or old.renewal)
            case AuthorityChange.PROMOTE:
                assert old is not None
                self.authority = replace(old, signing=old.following, following=None, retired=decided.trusted)
            case AuthorityChange.RETIRE:
                assert old is not None
                self.authority = replace(old, retired=decided.trusted)

    def read_by_pods(self) -> None:
        """Each pod may read now, Secret and ConfigMap apart; none has anything older than `SPREAD`."""
        late = [each for each in self.history if each[0] <= self.now - SPREAD]
        self.history = [*late[-1:], *(each for each in self.history if each[0] > self.now - SPREAD)]
        for pod in self.pods:
            pod.shows = self.random.choice(self.history)[1]
            pod.trusts = self.random.choice(self.history)[2]

    def check(self) -> None:
        """Whoever connects trusts whom it reaches, whatever each of them has read."""
        for server in self.pods:
            for client in self.pods:
                assert server.shows == "" or server.shows in client.trusts, (self.now, server, client)

    def run(self, seconds: float, step: float) -> None:
        end = self.now + seconds
        while self.now < end:
            for _ in range(3):  # steps that follow at once
                self.reconcile()
            self.read_by_pods()
            self.check()
            self.now += step


def begun(seed: int = 0) -> World:
    """A set with a certificate that everybody has read."""
    world = World(seed)
    world.run(SPREAD * 3, 20)
    world.done.clear()
    return world


def test_a_new_set_has_a_certificate_at_once() -> None:
    """Nobody trusts anybody else yet, so there is nothing to wait for."""
    world = World()

    world.reconcile()
    world.reconcile()

    assert world.done == ["make", "issue"]
    assert world.seen().usable


def test_nothing_is_done_while_all_is_good() -> None:
    """Neither twice, nor for a request that was done."""
    world = begun()
    world.wishes = replace(WISHES, renewal="1")
    world.run(20, 20)
    assert world.done == ["issue"]

    world.run(DAY, 3600)
    world.wishes = WISHES
    world.run(DAY, 3600)

    assert world.done == ["issue"]


@pytest.mark.parametrize("seed", range(20))
def test_no_pod_ever_meets_a_certificate_that_it_does_not_trust(seed: int) -> None:
    """Through renewals of both, requests, lost Secrets and new groups at random moments, pods being late."""
    world = begun(seed)
    for turn in range(12):
        what = world.random.choice(["authority", "certificate", "lost", "lost key", "host", "later"])
        if what == "authority":
            world.wishes = replace(world.wishes, authority_renewal=str(turn))
        elif what == "certificate":
            world.wishes = replace(world.wishes, renewal=str(turn))
        elif what == "lost":
            world.certificate = None
        elif what == "lost key":
            world.authority = None
        elif what == "host":
            world.wishes = replace(world.wishes, hosts=(*world.wishes.hosts, f"{turn}.svc"))
        else:
            world.run(40 * DAY, DAY)
        world.run(world.random.choice([40, SPREAD, SPREAD * 4]), 20)
    world.run(SPREAD * 4, 20)

    assert len(world.published) == 1, "the former authorities are given up in the end"
    assert world.seen().usable


def test_ten_years_take_few_renewals() -> None:
    """A certificate is renewed when a third of its days is left, an authority when a third of its are."""
    world = begun()

    world.run(10 * 365 * DAY, DAY)

    assert world.done.count("prepare") == world.done.count("promote") == world.done.count("retire") == 2
    assert 58 <= world.done.count("issue") <= 64


def test_a_certificate_is_renewed_when_a_third_of_its_time_is_left() -> None:
    """Not a second earlier."""
    world = begun()
    assert world.certificate is not None
    assert world.certificate.shown is not None
    made = world.certificate.shown.made

    assert decide_certificate(world.seen(), WISHES, made + 60 * DAY - 1) is None
    issue = decide_certificate(world.seen(), WISHES, made + 60 * DAY)

    assert isinstance(issue, Issue)
    assert issue.why == "it is about to expire"


def test_a_new_authority_signs_when_everybody_had_the_time_to_read_it() -> None:
    """Before, it says until when it waits; the certificate goes on to be the old one's."""
    world = begun()
    world.wishes = replace(WISHES, authority_renewal="now")
    world.reconcile()
    assert isinstance(decide_authority(world.seen(), world.wishes, world.now), WaitUntil)
    published_at = world.now

    waits = decide_authority(world.seen(), world.wishes, published_at + SPREAD - 1)
    signs = decide_authority(world.seen(), world.wishes, published_at + SPREAD)

    assert waits == WaitUntil(published_at + SPREAD, "pods and clients read the new authority")
    assert isinstance(signs, ChangeAuthority)
    assert signs.change == AuthorityChange.PROMOTE


def test_a_config_map_that_was_deleted_starts_the_time_again() -> None:
    """Who has read it before may have lost it."""
    world = begun()
    world.wishes = replace(WISHES, authority_renewal="now")
    world.reconcile()
    world.published = {}

    decided = decide_authority(world.seen(), world.wishes, world.now + DAY)

    assert isinstance(decided, WaitUntil)
    assert decided.time is None


def set_back(world: World, days: float) -> None:
    """The clock is set right, which was ahead; what pods have read stays."""
    world.now -= days * DAY
    world.history = [(world.now, signed_by, trusted) for _, signed_by, trusted in world.history]
    world.done.clear()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("after", [0, SPREAD / 2, SPREAD * 1.5, SPREAD * 5])
def test_what_was_made_under_a_clock_that_was_ahead_is_made_again(seed: int, after: float) -> None:
    """Nobody takes it before its time; at each moment of an exchange nobody meets what it does not trust."""
    world = begun(seed)
    world.now += 400 * DAY
    world.wishes = replace(WISHES, authority_renewal="now")
    world.run(after, 20)
    world.reconcile()
    set_back(world, 400)

    world.run(SPREAD * 6, 20)

    seen = world.seen()
    assert seen.authority is not None
    assert seen.authority.signing is not None
    assert seen.certificate is not None
    assert seen.certificate.shown is not None
    assert seen.authority.signing.made <= world.now
    assert seen.certificate.shown.made <= world.now
    assert seen.usable
    assert len(world.published) == 1
    done = len(world.done)
    world.run(DAY, 3600)
    assert len(world.done) == done


def test_a_clock_that_is_a_little_behind_changes_nothing() -> None:
    """A certificate is good from an hour before it is made, and is left alone for as long."""
    world = begun()
    set_back(world, 1 / 24)

    world.run(SPREAD, 20)

    assert world.done == []
    assert CLOCK_SKEW.total_seconds() == CLOCK_SKEW_SECONDS


def test_an_authority_that_has_expired_waits_for_nobody() -> None:
    """Its certificates are refused already."""
    world = begun()
    world.wishes = replace(WISHES, authority_renewal="now")
    world.reconcile()
    assert world.authority is not None
    assert world.authority.signing is not None

    decided = decide_authority(world.seen(), world.wishes, world.authority.signing.not_after + 1)

    assert isinstance(decided, ChangeAuthority)
    assert decided.change == AuthorityChange.PROMOTE


def test_a_lost_authority_leaves_the_old_one_trusted_until_a_new_certificate_is_everywhere() -> None:
    """Its certificate goes on to be shown meanwhile."""
    world = begun()
    world.authority = None
    world.reconcile()
    assert len(world.seen().trusted) == 2
    assert isinstance(decide_certificate(world.seen(), WISHES, world.now), WaitUntil)

    world.run(SPREAD * 4, 20)

    assert world.done == ["make", "issue", "retire"]


def test_the_former_authority_goes_when_everybody_had_the_time_to_read_the_new_certificate() -> None:
    """Until then it is waited for, so that it does not stay until something else happens."""
    world = begun()
    world.wishes = replace(WISHES, authority_renewal="now")
    world.run(SPREAD + 20, 20)
    assert world.done == ["prepare", "promote", "issue"]
    assert world.certificate is not None
    assert world.certificate.shown is not None
    everywhere = world.certificate.shown.made + SPREAD

    waits = decide_authority(world.seen(), world.wishes, everywhere - 1)
    goes = decide_authority(world.seen(), world.wishes, everywhere)

    assert waits == WaitUntil(everywhere, "pods read the certificate of the new authority")
    assert isinstance(goes, ChangeAuthority)
    assert (goes.change, goes.trusted) == (AuthorityChange.RETIRE, ())


@pytest.mark.parametrize("missing", ["*.orders-1.shop.svc", "10.0.0.7"])
def test_a_certificate_that_lacks_a_name_is_issued_again(missing: str) -> None:
    """A new group, or an address outside; one name too many is no reason."""
    world = begun()
    more = replace(WISHES, hosts=(*HOSTS, missing))

    issue = decide_certificate(world.seen(), more, world.now)

    assert isinstance(issue, Issue)
    assert issue.why == f"it is not for {missing}"
    assert decide_certificate(world.seen(), replace(WISHES, hosts=HOSTS[:1]), world.now) is None
