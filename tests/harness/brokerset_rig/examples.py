"""How many examples properties try: a part of them in `make test`, all in CI, ten times as many in `make full`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

PROFILES = {"quick": 0.2, "ci": 1.0, "full": 10.0}
EXAMPLES = 100
"""Of a property that names no number, in CI."""
EXAMPLES_MIN = 5


def register() -> None:
    """Make the profiles known that `--hypothesis-profile` chooses from; `ci` is the one of whoever names none."""
    for name, part in PROFILES.items():
        # How long an example takes says how busy the machine is, and nothing about the property.
        settings.register_profile(name, deadline=None, max_examples=_of(EXAMPLES, part))
    settings.load_profile("ci")


def examples(number: int, **others: Any) -> settings:
    """A property that needs more or fewer examples than others: so many in CI."""
    part = PROFILES.get(settings.get_current_profile_name(), 1.0)
    return settings(max_examples=_of(number, part), **others)


def _of(number: int, part: float) -> int:
    return max(EXAMPLES_MIN, round(number * part))
