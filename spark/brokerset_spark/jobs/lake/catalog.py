"""Where Iceberg tables are registered, as options say it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

SECRET_WORDS: Final = (
    "secret",
    "token",
    "password",
    "credential",
    "access-key",
    "account-key",
    "api-key",
    "connection-string",
    "authorization",
    "session-kwargs",
    "sas",
    "signer",
)
"""Words in names of catalog properties that hold secrets."""


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """Where the tables are registered.

    pyiceberg reads further properties from PYICEBERG_CATALOG__NAME__… in the environment and from
    .pyiceberg.yaml: there is the place of secrets.
    """

    name: str = "default"
    properties: Mapping[str, str] = field(default_factory=dict)
    table: str = "brokerset.messages"
    """Namespace and name."""

    def problems(self) -> list[str]:
        """What is wrong, one sentence each."""
        found = []
        for name, value in self.properties.items():
            _, user, _ = value.partition("://")[2].partition("@")
            has_password = user and ":" in value.partition("://")[2].partition("@")[0]
            query = value.partition("?")[2].lower() if "://" in value else ""
            has_password = has_password or any(word in query for word in SECRET_WORDS)
            if any(word in name.lower() for word in SECRET_WORDS) or has_password:
                variable = (
                    f"PYICEBERG_CATALOG__{self.name}__{name.replace('.', '__').replace('-', '_')}".upper()
                )
                found.append(
                    f"catalog property {name} has a secret, and command lines can be read by all: put it "
                    f"into the environment as {variable}, or into .pyiceberg.yaml"
                )
        if self.table.count(".") < 1 or not all(self.table.split(".")):
            found.append(f"table {self.table!r}: write NAMESPACE.NAME")
        return found


def catalog_of(name: str | None, properties: Sequence[str], table: str | None) -> CatalogOptions:
    """From the command's options. ValueError for a property without a value."""
    given = {}
    for each in properties:
        key, found, value = each.partition("=")
        if not found or not key:
            raise ValueError(f"catalog property {each!r}: write NAME=VALUE")
        given[key] = value
    default = CatalogOptions()
    return CatalogOptions(name or default.name, given, table or default.table)
