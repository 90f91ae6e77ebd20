"""Amounts are spelled as the API server spells them."""

from __future__ import annotations

import pytest

from brokerset_operator.resources.quantities import canonical, smaller


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (2, "2"),
        ("0", "0"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        ("2000m", "2"),
        ("1500m", "1500m"),
        ("0.0005", "500u"),
        ("1000", "1k"),
        ("2048", "2048"),
        ("1000M", "1G"),
        ("1024Ki", "1Mi"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("20Gi", "20Gi"),
        ("1Ei", "1Ei"),
        ("1024Ei", "1024Ei"),
        ("5T", "5T"),
        ("much", "much"),
    ],
)
def test_amounts_are_spelled_as_the_api_server_spells_them(given: int | str, expected: str) -> None:
    """Otherwise what is there would always differ from what is wanted, and be sent again in every round."""
    assert canonical(given) == expected
    assert canonical(canonical(given)) == expected


def test_amounts_are_compared_across_units() -> None:
    """The smaller amount is returned as it was written."""
    assert smaller("20Gi", "500G") == "20Gi"
    assert smaller("20Gi", "20G") == "20G"
    assert smaller("1024Mi", "1Gi") == "1024Mi"
    with pytest.raises(ValueError, match="'much' is no amount"):
        smaller("much", "1Gi")
