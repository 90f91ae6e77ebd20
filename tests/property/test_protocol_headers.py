"""Every header class: writing and reading is identity, and no field value does more than a refusal."""

from __future__ import annotations

import dataclasses
from types import NoneType
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_protocol import headers
from brokerset_protocol.commands import Command, CommandReader, encode
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers import Header, Int, Long
from brokerset_rig.examples import examples

CLASSES = sorted(
    (
        value
        for value in (getattr(headers, name) for name in headers.__all__)
        if isinstance(value, type) and issubclass(value, Header) and value is not Header
    ),
    key=lambda cls: cls.__name__,
)
VALUES: dict[object, st.SearchStrategy[object]] = {
    str: st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    bool: st.booleans(),
    Int: st.integers(-(2**31), 2**31 - 1),
    Long: st.integers(-(2**63), 2**63 - 1),
}


def instances(cls: type[Header]) -> st.SearchStrategy[Header]:
    hints = get_type_hints(cls, include_extras=True)
    chosen: dict[str, st.SearchStrategy[object]] = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if hint in VALUES:
            chosen[field.name] = VALUES[hint]
        else:
            (inner,) = (arg for arg in get_args(hint) if arg is not NoneType)
            chosen[field.name] = st.none() | VALUES[inner]
    return st.builds(cls, **chosen)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@examples(10)
@given(data=st.data(), binary=st.booleans())
def test_headers_survive_the_wire(cls: type[Header], data: st.DataObject, binary: bool) -> None:
    """A header that was written into a frame, JSON or binary, is read as the same value."""
    header = data.draw(instances(cls))

    (command,) = CommandReader().feed(encode(Command(1, header.to_ext(), binary=binary)))

    assert cls.from_ext(command.ext) == header


ODD: st.SearchStrategy[object] = st.one_of(
    st.none(), st.text(max_size=25), st.integers(), st.floats(), st.booleans(), st.just([]), st.just({})
)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@examples(10)
@given(data=st.data())
def test_odd_values_are_read_or_refused(cls: type[Header], data: st.DataObject) -> None:
    """Whatever stands in the fields, reading them gives a header or a refusal."""
    ext = data.draw(st.fixed_dictionaries({name: ODD for name in cls.wire_names()}))

    try:
        header = cls.from_ext(ext)
    except Rejected:
        return

    assert cls.from_ext(header.to_ext()) == header
