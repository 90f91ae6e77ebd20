from __future__ import annotations

import json
from typing import Any

import pytest

from brokerset_kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    Request,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    error_of,
)

REQUEST = Request("patch", "pods", "", "shop", "orders-0-0")


def status(reason: str, message: str = "no", **details: Any) -> bytes:
    return json.dumps({"kind": "Status", "reason": reason, "message": message, "details": details}).encode()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
        (400, "BadRequest", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (405, "MethodNotAllowed", ApiError),
    ],
)
def test_each_answer_has_the_type_that_says_who_must_act(
    code: int, reason: str, kind: type[KubeError]
) -> None:
    """An answer's code and reason decide on the type of the error."""
    error = error_of(REQUEST, code, status(reason))

    assert type(error) is kind


def test_missing_right_is_spelled_out() -> None:
    """Forbidden by authorization tells the rule that has to be granted."""
    text = 'pods "x" is forbidden: User "system:serviceaccount:a:b" cannot patch resource "pods"'

    error = error_of(REQUEST, 403, status("Forbidden", text))

    assert "verb patch, resource pods, API group '(core)' in namespace shop" in str(error)


def test_refusal_by_admission_is_no_missing_right() -> None:
    """Forbidden by a quota or by pod security does not advise to grant rights."""
    error = error_of(REQUEST, 403, status("Forbidden", "exceeded quota: small"))

    assert "admission rule" in str(error)
    assert "grant" not in str(error)


def test_every_cause_of_an_invalid_object_is_kept() -> None:
    """Invalid carries field and message of each cause."""
    body = status("Invalid", causes=[{"field": "spec.a", "message": "too small"}, {"message": "odd"}])

    error = error_of(REQUEST, 422, body)

    assert isinstance(error, Invalid)
    assert [str(cause) for cause in error.causes] == ["spec.a: too small", "odd"]


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("7", {}, 7.0),
        (None, {"retryAfterSeconds": 3}, 3.0),
        ("100000", {}, 60.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, None),
        (None, {}, None),
    ],
)
def test_the_pause_that_the_server_asks_for_is_known_and_bounded(
    header: str | None, details: dict[str, Any], seconds: float | None
) -> None:
    """Retry-After comes from the header or the body, and never exceeds a minute."""
    error = error_of(REQUEST, 429, status("TooManyRequests", **details), header)

    assert isinstance(error, TooManyRequests)
    assert error.retry_after == seconds


def test_an_answer_that_is_no_status_is_shown_shortened() -> None:
    """What a proxy answers in the place of the API server is part of the text."""
    error = error_of(REQUEST, 502, b"<html>bad gateway" + b"x" * 5000)

    assert "bad gateway" in str(error)
    assert len(str(error)) < 1500


def test_a_request_names_what_it_is_about() -> None:
    """A request's text has verb, resource with its group, namespace and name."""
    assert (
        str(Request("get", "leases", "coordination.k8s.io", "a", "b")) == "get leases.coordination.k8s.io a/b"
    )
