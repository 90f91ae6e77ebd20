"""The two tables of an outbox.

They are meant for SQLite, PostgreSQL from 12, MySQL from 8.0, MariaDB from 10.3 and SQL Server from 2016.
**SQLite and PostgreSQL are tested.** What another database must do: keep the empty text apart from NULL, for
an empty order key is a key (Oracle does not); never use an id again, also after a restart with an empty
table, for consumers know repetitions by it (MySQL 5.7 does not); lock an updated row until the transaction
ends, and check the conditions of who waited for it again.

Where such a wait has no end by itself (PostgreSQL), a process that is frozen within a transaction of the
outbox keeps the others from taking over until its connection ends. Give the sender's connections a
`lock_timeout`, and the server an `idle_in_transaction_session_timeout`. PostgreSQL has no character NUL in
texts: `Outbox.add` fails with a `DataError` for such a key, and the transaction with it.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Unicode,
    UnicodeText,
)
from sqlalchemy.dialects.mysql import MEDIUMBLOB, MEDIUMTEXT

SUBJECT_MAX: Final = 127
"""Characters of a subject: RocketMQ's limit for topics."""

OWNER_MAX: Final = 128
"""Characters of an owner's name."""

_BIG = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts `INTEGER` primary keys only; they have 64 bits there."""

_BYTES = LargeBinary().with_variant(MEDIUMBLOB(), "mysql", "mariadb")
_TEXT = UnicodeText().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
"""Without a variant both are 64 KiB on MySQL; Unicode, for SQL Server has types that are not."""


class OutboxTables:
    """The tables, in a `MetaData` of the application or one of their own; `name` begins both names."""

    def __init__(self, metadata: MetaData | None = None, name: str = "brokerset_outbox") -> None:
        self.metadata = metadata if metadata is not None else MetaData()
        self.name = name
        self.messages = Table(
            name,
            self.metadata,
            Column("id", _BIG, primary_key=True, autoincrement=True),
            Column("subject", String(SUBJECT_MAX), nullable=False),
            Column("logical", SmallInteger, nullable=False),
            Column("order_key", _TEXT, nullable=True),
            Column("body", _BYTES, nullable=False),
            Column("properties", _TEXT, nullable=False),
            Column("created_ms", BigInteger, nullable=False),
            Column("problem", _TEXT, nullable=True),
            Index(f"{name}_lanes", "subject", "logical", "id"),
            sqlite_autoincrement=True,  # an id is never used again, also after the last row was deleted
        )
        """Messages that are not confirmed yet. `problem`: why this one, and its logical partition, waits."""
        self.lease = Table(
            f"{name}_lease",
            self.metadata,
            Column("name", String(64), primary_key=True),
            Column("owner", Unicode(OWNER_MAX), nullable=False),
            Column("epoch", BigInteger, nullable=False),
            Column("beats", BigInteger, nullable=False),
        )
        """One row for each outbox: who sends."""
