"""Changing some properties of a message without losing the others."""

from __future__ import annotations

from collections.abc import Mapping

from brokerset_formats.properties import decode_properties, encode_properties


def edit_properties(raw: bytes, changes: Mapping[str, str | None]) -> bytes:
    """`raw` with the given properties set, or removed where the value is `None`.

    Raises `FormatError` if a new value holds a separator.
    """
    properties = decode_properties(raw)
    for name, value in changes.items():
        if value is None:
            properties.pop(name, None)
        else:
            properties[name] = value
    return encode_properties(properties)
