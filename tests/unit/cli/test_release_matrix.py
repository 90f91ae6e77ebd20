"""Which releases of brokers and controllers work together."""

from __future__ import annotations

import itertools

import pytest

from brokerset_cli.takeover.matrix import Age, age_of, following, under_controllers

OLD, NEW = Age.ADDRESSES, Age.IDS


@pytest.mark.parametrize(
    ("version", "age"),
    [
        ("4.9.7", Age.NO_CONTROLLERS),
        ("V4_9_8_SNAPSHOT", Age.NO_CONTROLLERS),
        ("5.0.0", OLD),
        ("V5_1_0", OLD),
        ("5.1.0-SNAPSHOT", OLD),
        ("V5_1_1", NEW),
        ("5.1.4", NEW),
        ("V5_5_0", NEW),
        ("5.10.0", NEW),
        ("6.0.0", NEW),
        (" v5.2.0 ", NEW),
    ],
)
def test_the_age_is_told_by_the_version_as_rocketmq_writes_it(version: str, age: Age) -> None:
    """In tables of mqadmin and in names of releases; a snapshot counts as its release."""
    assert age_of(version) is age


@pytest.mark.parametrize("version", ["", "5", "5.1", "unknown", "5.1.x", "a5.1.1", "5.1.1.2"])
def test_what_is_no_version_is_refused_by_name(version: str) -> None:
    """Rather than taken for some age."""
    with pytest.raises(ValueError, match="no version of RocketMQ"):
        age_of(version)


@pytest.mark.parametrize("age", [OLD, NEW])
def test_brokers_are_served_by_controllers_of_their_age(age: Age) -> None:
    """And then nothing has to be done."""
    verdict = under_controllers(age, age)

    assert verdict.served
    assert not verdict.way_out


@pytest.mark.parametrize(
    ("broker", "controllers", "words", "way_out"),
    [
        (OLD, NEW, "names its address and no id", "upgrade the broker"),
        (NEW, OLD, "gets no id", "replace the controllers"),
        (Age.NO_CONTROLLERS, OLD, "knows no controllers", "`brokerset upgrade classic`"),
        (Age.NO_CONTROLLERS, NEW, "knows no controllers", "`brokerset upgrade classic`"),
    ],
)
def test_brokers_of_another_age_are_not_served_and_the_way_out_is_named(
    broker: Age, controllers: Age, words: str, way_out: str
) -> None:
    """The younger side stays as it is, the older one is upgraded."""
    verdict = under_controllers(broker, controllers)

    assert not verdict.served
    assert words in verdict.words
    assert way_out in verdict.way_out


def test_there_are_no_controllers_before_5_0() -> None:
    """Whoever asks about them has mistaken something else for controllers."""
    with pytest.raises(ValueError, match=r"4\.x has no controllers"):
        under_controllers(NEW, Age.NO_CONTROLLERS)


@pytest.mark.parametrize(("slave", "master"), list(itertools.product(Age, Age)))
def test_a_slave_copies_from_a_master_of_its_age_only(slave: Age, master: Age) -> None:
    """Every other pair has words and a way out."""
    verdict = following(slave, master)

    assert verdict.served is (slave is master)
    assert bool(verdict.way_out) is not verdict.served


def test_it_is_said_which_of_the_two_is_the_older() -> None:
    """For that one is upgraded."""
    assert "the slave is of an age" in following(OLD, NEW).words
    assert "the master is of an age" in following(NEW, OLD).words
