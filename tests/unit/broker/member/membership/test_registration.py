"""The registration's state machine: every transition, and what a start after any of them goes on with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_broker.member.membership import diagnosis
from brokerset_broker.member.membership.diagnosis import Names, ProblemKind
from brokerset_broker.member.membership.registration import (
    LOST_BOOT,
    ApplyId,
    AskNextId,
    DeleteTemp,
    FilesRead,
    FilesUnusable,
    FinishStart,
    IdGranted,
    NextIdReceived,
    ReadFiles,
    Refused,
    Register,
    Registration,
    Result,
    Serve,
    StartCommitted,
    StepDone,
    Unanswered,
    WriteIdentity,
    WriteStart,
    WriteTemp,
)
from brokerset_formats.identity import TRIED_NONCES_MAX, BrokerIdentity, StartRecord

NAMES = Names("c", "b", "/store/brokerIdentity")
CODE = "10.0.0.1:10911;1000"
IDENTITY = BrokerIdentity("c", "b", 3)
SILENT = Unanswered(diagnosis.silent(("c0:9878",), "no answer"))
COMMITTED = StartCommitted(incarnation=1, next_broker_id=4, group_epoch=7)


def machine(nonce: str = "n1", *, boot_id: str = "boot", closed_cleanly: bool = True) -> Registration:
    codes = iter(f"10.0.0.1:10911;{number}" for number in range(1000, 2000))
    return Registration(
        names=NAMES,
        nonce=nonce,
        boot_id=boot_id,
        closed_cleanly=closed_cleanly,
        new_check_code=lambda: next(codes),
    )


def fed(found: Registration, *results: Result) -> Registration:
    for result in results:
        found.feed(result)
    return found


def step_of(found: Registration) -> object:
    """The current step, as type checkers cannot know it."""
    return found.step


def registering(start: StartRecord | None, **changes: object) -> Registration:
    """Up to the first Register of a broker with an identity."""
    found = fed(machine(**changes), FilesRead(IDENTITY, None, start), StepDone())  # type: ignore[arg-type]  # of machine
    assert isinstance(found.step, Register)
    return found


def test_a_new_broker_takes_all_steps_in_order() -> None:
    """Each result leads to the next step, and what is written is what was told."""
    found = machine()
    steps: list[object] = [found.step]

    results: tuple[Result, ...] = (
        FilesRead(), NextIdReceived(3), StepDone(), IdGranted(), StepDone(), StepDone(), StepDone(),
        COMMITTED, StepDone(),
    )  # fmt: skip
    for result in results:
        found.feed(result)
        steps.append(found.step)

    started = StartRecord(None, "n1", (), CODE, 3, 0, "boot")
    assert steps == [
        ReadFiles(),
        AskNextId(),
        WriteTemp(replace(IDENTITY, check_code=CODE)),
        ApplyId(3, CODE),
        WriteIdentity(IDENTITY),
        WriteStart(started),
        DeleteTemp(),
        Register(3, None, (), "n1", adopt=False, lost_cache=False),
        FinishStart(replace(started, last_nonce="n1", next_nonce=None, next_broker_id=4, group_epoch=7)),
        Serve(),
    ]
    assert (found.broker_id, found.incarnation, found.group_epoch, found.problem) == (3, 1, 7, None)


@pytest.mark.parametrize("count", range(9))
def test_a_lost_answer_repeats_the_same_step(count: int) -> None:
    """Whatever the step is, its repetition is equal: same id, same code, same nonce."""
    results: list[Result] = [
        FilesRead(), NextIdReceived(3), StepDone(), IdGranted(), StepDone(), StepDone(), StepDone(),
        COMMITTED, StepDone(),
    ]  # fmt: skip
    found = fed(machine(), *results[:count])
    step = found.step

    fed(found, SILENT, SILENT)

    assert step_of(found) == step
    assert found.problem is not None
    assert not found.waits
    fed(found, results[count])
    assert found.step != step
    assert found.problem is None


def test_a_claim_from_before_a_crash_is_repeated() -> None:
    """With only the temporary file the same id is claimed with the same code."""
    found = fed(machine(), FilesRead(temp=replace(IDENTITY, check_code="old;1")))

    assert step_of(found) == ApplyId(3, "old;1")
    fed(found, IdGranted())
    assert step_of(found) == WriteIdentity(IDENTITY)


def test_a_claim_under_other_names_is_dropped() -> None:
    """Nothing hangs on it but an unused id."""
    found = fed(machine(), FilesRead(temp=BrokerIdentity("c", "other", 3, "old;1")))

    assert step_of(found) == AskNextId()


@pytest.mark.parametrize("code", [2014, 2102])
def test_an_id_that_another_broker_got_first_is_given_up(code: int) -> None:
    """The claim is deleted, and the id that the refusal names is claimed with a fresh code."""
    found = fed(machine(), FilesRead(), NextIdReceived(3), StepDone(), Refused(code, "taken", 5))

    assert step_of(found) == DeleteTemp()
    fed(found, StepDone())
    assert step_of(found) == WriteTemp(BrokerIdentity("c", "b", 5, "10.0.0.1:10911;1001"))
    assert found.problem is None


def test_a_refusal_that_names_no_id_starts_over() -> None:
    """Java's controllers do not say which id to apply for."""
    found = fed(machine(), FilesRead(), NextIdReceived(3), StepDone(), Refused(2014), StepDone())

    assert step_of(found) == AskNextId()


def test_an_identity_wins_over_a_claim_left_behind() -> None:
    """After a crash behind WriteIdentity the code is taken from the claim, which then goes."""
    found = fed(machine(), FilesRead(IDENTITY, replace(IDENTITY, check_code="old;1")))

    assert isinstance(found.step, WriteStart)
    assert found.step.record.check_code == "old;1"
    fed(found, StepDone())
    assert step_of(found) == DeleteTemp()
    fed(found, StepDone())
    assert step_of(found) == Register(3, None, (), "n1", adopt=False, lost_cache=False)


def test_a_claim_of_another_id_lends_no_code() -> None:
    """It goes, and the identity counts as made elsewhere."""
    found = fed(machine(), FilesRead(IDENTITY, BrokerIdentity("c", "b", 9, "x;1")), StepDone(), StepDone())

    assert step_of(found) == Register(3, None, (), "n1", adopt=True, lost_cache=False)


@pytest.mark.parametrize("names", [("c", "other"), ("other", "b")])
def test_other_names_than_in_the_settings_stop_the_registration(names: tuple[str, str]) -> None:
    """The files are read again later, for people repair such things."""
    found = fed(machine(), FilesRead(BrokerIdentity(*names, 3)))

    assert step_of(found) == ReadFiles()
    assert found.waits
    assert found.problem is not None
    assert found.problem.kind is ProblemKind.NAMES_DIFFER
    assert "/store/brokerIdentity belongs to broker" in found.problem.text
    fed(found, FilesRead(IDENTITY))
    assert isinstance(found.step, WriteStart)


def test_unusable_files_stop_the_registration() -> None:
    """Nothing is guessed; the next reading may find them repaired."""
    found = fed(machine(), FilesUnusable(diagnosis.damaged("brokerIdentity", "garbled", "restore it")))

    assert (found.step, found.waits) == (ReadFiles(), True)


def test_a_volume_of_java_is_offered_for_adoption() -> None:
    """An identity without a start file and without a claim was made by another program."""
    found = registering(None)

    assert step_of(found) == Register(3, None, (), "n1", adopt=True, lost_cache=False)


def test_adoption_is_offered_again_after_a_crash_before_it_was_committed() -> None:
    """The start file alone does not make the identity one of ours."""
    found = registering(StartRecord(next_nonce="n0", boot_id="boot"))

    assert step_of(found) == Register(3, None, ("n0",), "n1", adopt=True, lost_cache=False)


def test_a_restart_names_the_last_start() -> None:
    """Nothing was tried in between."""
    found = registering(StartRecord("n0", None, (), CODE, 4, 7, "boot"))

    assert step_of(found) == Register(3, "n0", (), "n1", adopt=False, lost_cache=False)


def test_a_start_of_unknown_fate_moves_to_the_tried_ones() -> None:
    """The controllers may know it as the newest."""
    found = registering(StartRecord("n0", "t2", ("t1",), CODE, 4, 7, "boot"))

    assert step_of(found) == Register(3, "n0", ("t1", "t2"), "n1", adopt=False, lost_cache=False)


def test_at_the_limit_of_tried_starts_the_newest_nonce_is_used_again() -> None:
    """So the committed one is never dropped, whichever it is."""
    tried = tuple(f"t{number}" for number in range(TRIED_NONCES_MAX))
    found = registering(StartRecord("n0", "newest", tried, CODE))

    assert step_of(found) == Register(3, "n0", tried, "newest", adopt=False, lost_cache=False)
    assert found.nonce == "newest"
    fed(found, COMMITTED)
    assert isinstance(found.step, FinishStart)
    assert found.step.record.last_nonce == "newest"
    assert found.step.record.tried_nonces == ()


@pytest.mark.parametrize(
    ("start", "clean", "boot_id", "lost"),
    [
        (StartRecord("n0", boot_id="boot"), True, "boot", False),
        (StartRecord("n0", boot_id="old"), True, "boot", False),
        (StartRecord("n0", boot_id="boot"), False, "boot", False),
        (StartRecord("n0", boot_id="old"), False, "boot", True),
        (StartRecord("n0", boot_id=""), False, "", True),
        (None, False, "boot", True),
        (None, True, "boot", False),
    ],
)
def test_when_the_page_cache_is_lost(
    start: StartRecord | None, clean: bool, boot_id: str, lost: bool
) -> None:
    """Exactly when the log was not closed and the host was booted since, or nobody knows."""
    found = registering(start, closed_cleanly=clean, boot_id=boot_id)

    assert isinstance(found.step, Register)
    assert found.step.lost_cache is lost


def test_a_lost_page_cache_is_remembered_until_a_master_is_known() -> None:
    """Also when the controllers know it: they may lose their data before the next election."""
    found = fed(machine(closed_cleanly=False), FilesRead(IDENTITY, None, StartRecord("n0", boot_id="old")))

    assert isinstance(found.step, WriteStart)
    assert found.step.record.boot_id == LOST_BOOT
    fed(found, StepDone(), COMMITTED)
    assert isinstance(found.step, FinishStart)
    assert found.step.record.boot_id == LOST_BOOT
    fed(found, StepDone())
    assert found.reports_loss
    assert found.settled == replace(found.record, boot_id="boot")
    found.loss_settled()
    assert (found.record.boot_id, found.reports_loss) == ("boot", False)


def test_a_loss_is_registered_again_until_a_master_is_known() -> None:
    """Controllers that forgot this start learn of it from the same process."""
    found = fed(registering(StartRecord("n0", boot_id="old"), closed_cleanly=False), COMMITTED, StepDone())
    found.register_again()

    assert step_of(found) == Register(3, "n1", (), "n1", adopt=False, lost_cache=True, unclean=True)
    fed(found, COMMITTED, StepDone()).loss_settled()
    found.register_again()
    assert step_of(found) == Register(3, "n1", (), "n1", adopt=False, lost_cache=False, unclean=True)


def test_of_a_volume_of_another_program_nobody_is_told_a_loss() -> None:
    """Nothing is known of how it was closed; the registration alone says so, and the next start does not."""
    found = registering(None, closed_cleanly=False)

    assert isinstance(found.step, Register)
    assert (found.step.adopt, found.step.lost_cache, found.reports_loss) == (True, True, False)
    fed(found, COMMITTED)
    assert isinstance(found.step, FinishStart)
    assert (found.step.record.boot_id, found.reports_loss) == ("boot", False)


@pytest.mark.parametrize(("told", "known", "kept"), [(7, 9, 9), (7, 3, 7), (7, 0, 7)])
def test_an_epoch_that_went_with_the_page_cache_is_written_down(told: int, known: int, kept: int) -> None:
    """Whoever rebuilds the controllers' data must hear of it: it is not to be given again."""
    found = Registration(
        names=NAMES, nonce="n1", boot_id="boot", closed_cleanly=False, new_check_code=str, known_epoch=known
    )
    fed(found, FilesRead(IDENTITY, None, StartRecord("n0", group_epoch=told)))

    assert isinstance(found.step, WriteStart)
    assert found.step.record.group_epoch == kept


def test_closing_the_log_does_not_bring_a_lost_page_cache_back() -> None:
    """A start that could not register and was closed in order leaves the next one with the news to tell."""
    found = registering(StartRecord("n0", boot_id=LOST_BOOT), closed_cleanly=True, boot_id="boot")

    assert isinstance(found.step, Register)
    assert found.step.lost_cache


@pytest.mark.parametrize("clean", [True, False])
def test_the_log_may_count_as_closed_once_a_loss_is_written_down(clean: bool) -> None:
    """Who found the log unclosed must not call it closed before the start file has what that means."""
    found = machine(closed_cleanly=clean)
    known = [found.loss_is_known]
    for result in (FilesRead(IDENTITY, None, StartRecord("n0", boot_id="old")), SILENT, StepDone()):
        known.append(fed(found, result).loss_is_known)

    assert known == [clean, clean, clean, True]


@pytest.mark.parametrize("clean", [True, False])
def test_an_unclean_stop_is_told_and_forgotten_only_when_the_controllers_know_it(clean: bool) -> None:
    """Its page cache is there, but its volume may be an older copy: only controllers keep that."""
    found = machine(closed_cleanly=clean)
    fed(found, FilesRead(IDENTITY, None, StartRecord("n0", boot_id="boot")), StepDone())

    assert isinstance(found.step, Register)
    assert (found.step.lost_cache, found.step.unclean, found.loss_is_known) == (False, not clean, clean)
    assert fed(found, COMMITTED).loss_is_known


def test_a_new_broker_that_crashed_while_it_registered_has_lost_nothing() -> None:
    """It never had messages, though its store was not closed."""
    found = fed(machine(closed_cleanly=False), FilesRead(temp=replace(IDENTITY, check_code="old;1")),
                IdGranted(), StepDone(), StepDone(), StepDone())  # fmt: skip

    assert isinstance(found.step, Register)
    assert not found.step.lost_cache


def test_with_controllers_of_java_the_nonces_stay_undecided() -> None:
    """They commit none, so the last known one stays the last."""
    found = fed(registering(StartRecord("n0", "t1", (), CODE)), StartCommitted())

    assert isinstance(found.step, FinishStart)
    assert found.step.record == StartRecord("n0", None, ("t1",), CODE, 0, 0, "boot")
    fed(found, StepDone())
    assert (found.incarnation, found.group_epoch) == (None, None)


def test_what_controllers_told_never_shrinks() -> None:
    """After the loss of all controllers' data the highest values ever told are needed."""
    found = fed(registering(StartRecord("n0", None, (), CODE, 9, 20, "boot")), COMMITTED)

    assert isinstance(found.step, FinishStart)
    assert (found.step.record.next_broker_id, found.step.record.group_epoch) == (9, 20)


@pytest.mark.parametrize(
    ("code", "kind", "text", "advice"),
    [
        (2100, ProblemKind.CONFLICT, "another process or copy of this folder", "replica replace"),
        (2101, ProblemKind.OWNED, "belongs to another BrokerSet", "another brokerName"),
        (2102, ProblemKind.RETIRED, "retired the id of broker 3 of group b", "replica replace"),
        (2010, ProblemKind.UNKNOWN_ID, "do not know broker 3 of group b", "controller rebuild"),
        (2005, ProblemKind.REFUSED, "with code 2005: said so", "controllerAddr"),
    ],
)
def test_a_refused_registration_says_why_and_tries_again(
    code: int, kind: ProblemKind, text: str, advice: str
) -> None:
    """The step stays, the remark is shown, and people are told what to do."""
    found = registering(StartRecord("n0", None, (), CODE))
    step = found.step

    fed(found, Refused(code, "said so"))

    assert (found.step, found.waits) == (step, True)
    assert found.problem is not None
    assert found.problem.kind is kind
    assert text in found.problem.text
    assert "said so" in found.problem.text
    assert advice in found.problem.advice


def test_a_refused_claim_keeps_its_file() -> None:
    """A group of another owner is no reason to forget the id."""
    found = fed(machine(), FilesRead(), NextIdReceived(3), StepDone(), Refused(2101, "theirs"))

    assert step_of(found) == ApplyId(3, CODE)
    assert found.problem is not None
    assert found.problem.kind is ProblemKind.OWNED


def test_the_same_start_can_be_registered_again() -> None:
    """For controllers that seem to have forgotten it."""
    found = fed(registering(StartRecord("n0", None, (), CODE)), COMMITTED, StepDone())

    found.register_again()

    assert step_of(found) == Register(3, "n1", (), "n1", adopt=False, lost_cache=False)
    fed(found, COMMITTED, StepDone())
    assert step_of(found) == Serve()


def test_a_result_of_another_step_is_a_bug() -> None:
    """The machine does not guess."""
    with pytest.raises(AssertionError):
        machine().feed(IdGranted())
