"""A thin asynchronous client of the Kubernetes API: what the operator needs of it, and no more."""

from __future__ import annotations

from brokerset_operator.kube.client import KubeClient, Listing
from brokerset_operator.kube.credentials import Access, CredentialsProblem, load_access
from brokerset_operator.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from brokerset_operator.kube.kinds import Kind, kind_of

__all__ = [
    "Access",
    "AlreadyExists",
    "ApiError",
    "Conflict",
    "CredentialsProblem",
    "Forbidden",
    "Gone",
    "Invalid",
    "Kind",
    "KubeClient",
    "KubeError",
    "Listing",
    "NotFound",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "kind_of",
    "load_access",
]
