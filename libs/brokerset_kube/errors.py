"""What the API server answers when it does not do what it was asked, as types that say who must act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import orjson

MESSAGE_LENGTH_MAX: Final = 1024
"""Most characters of an answer that is no `Status` that are kept for the error's text."""

RETRY_AFTER_SECONDS_MAX: Final = 60.0
"""A server that asks for a longer pause is asked again after this one all the same."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for, for the texts of errors and for counting."""

    verb: str
    """As rights name it: get, list, watch, create, update, patch, delete; apply is told from patch here."""

    resource: str
    """Plural, with a subresource behind a slash: `brokersets/status`."""

    group: str = ""
    """API group; empty for the core."""

    namespace: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        where = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.verb} {what} {where}".rstrip()

    @property
    def right(self) -> str:
        """The rule that an administrator has to grant for this."""
        verb = "patch" if self.verb == "apply" else self.verb
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"verb {verb}, resource {self.resource}, API group {self.group or '(core)'!r}{where}"


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason why an object is invalid."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class KubeError(Exception):
    """Anything that goes wrong between us and the API server; `reason` is one word, for conditions."""

    reason = "KubernetesError"
    retry_after: float | None = None
    """Seconds that the server asks to wait."""


class ApiError(KubeError):
    """The API server answered with an error."""

    reason = "Refused"

    def __init__(self, request: Request, code: int, message: str) -> None:
        super().__init__(f"{request}: {message} ({code})")
        self.request = request
        self.code = code
        self.message = message


class NotFound(ApiError):
    """The object, or its whole kind, is not there."""

    reason = "NotFound"


class Conflict(ApiError):
    """Somebody else changed the object in between: look at it again, then decide again."""

    reason = "Conflict"


class AlreadyExists(Conflict):
    """An object of that name is there already."""

    reason = "AlreadyExists"


class Gone(ApiError):
    """The resource version is too old to go on from; list again."""

    reason = "Expired"


class Unauthorized(ApiError):
    """The API server does not know who asks: the token is missing, expired or of another cluster."""

    reason = "Unauthorized"


class Forbidden(ApiError):
    """A right is missing, or admission refuses; an administrator must act."""

    reason = "Forbidden"

    def __init__(self, request: Request, code: int, message: str) -> None:
        # "<x> is forbidden: User ... cannot ..." comes from authorization; everything else from admission.
        if "cannot" in message and "User" in message:
            advice = f"grant this right to the pod's service account: {request.right}"
        else:
            advice = "an admission rule refuses it: see quotas, pod security and policies of the namespace"
        super().__init__(request, code, f"{message}; {advice}")


class Invalid(ApiError):
    """The object is not accepted as it is; repeating the request does not help."""

    reason = "Invalid"

    def __init__(self, request: Request, code: int, message: str, causes: tuple[Cause, ...] = ()) -> None:
        super().__init__(request, code, message)
        self.causes = causes


class Unavailable(KubeError):
    """The API server cannot be reached, took too long or failed itself; what was asked may have been done."""

    reason = "ApiUnavailable"

    def __init__(self, request: Request, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{request}: {message}; try again later")
        self.request = request
        self.retry_after = retry_after


class TooManyRequests(Unavailable):
    """The server asks for fewer requests."""

    reason = "TooManyRequests"


def error_of(request: Request, code: int, body: bytes, retry_after: str | None = None) -> KubeError:
    """The error that an answer stands for; `retry_after` is the header of that name."""
    status = _status(body)
    message = str(status.get("message") or "") or body[:MESSAGE_LENGTH_MAX].decode("utf-8", "replace").strip()
    return _typed(request, code, message or HTTPStatus(code).phrase, status, retry_after)


def error_of_status(request: Request, status: Mapping[str, Any]) -> KubeError:
    """The error that a `Status` object inside a watch stands for."""
    return _typed(request, int(status.get("code") or 500), str(status.get("message") or ""), status, None)


def _typed(
    request: Request, code: int, message: str, status: Mapping[str, Any], retry_after: str | None
) -> KubeError:
    details = status.get("details") or {}
    match code:
        case 401:
            return Unauthorized(request, code, f"{message}; check token and certificates")
        case 403:
            return Forbidden(request, code, message)
        case 404:
            return NotFound(request, code, message)
        case 409:
            kind = AlreadyExists if status.get("reason") == "AlreadyExists" else Conflict
            return kind(request, code, message)
        case 410:
            return Gone(request, code, message)
        case 400 | 422:
            causes = tuple(
                Cause(str(cause.get("field") or ""), str(cause.get("message") or ""))
                for cause in details.get("causes") or ()
            )
            return Invalid(request, code, message, causes)
        case 429:
            return TooManyRequests(request, message, _seconds(retry_after, details))
        case _ if code >= 500 or code == 408:
            return Unavailable(request, f"{message} ({code})", _seconds(retry_after, details))
        case _:
            return ApiError(request, code, message)


def _status(body: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _seconds(header: str | None, details: Mapping[str, Any]) -> float | None:
    text = header if header is not None else details.get("retryAfterSeconds")
    try:
        seconds = float(text) if text is not None else None
    except (TypeError, ValueError):
        return None  # the header may be a date; then our own pause is as good
    return None if seconds is None else min(max(0.0, seconds), RETRY_AFTER_SECONDS_MAX)
