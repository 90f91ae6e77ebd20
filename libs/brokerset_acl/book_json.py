"""A book of users and policies as JSON: what controllers send of it, and files of those who have a copy.

`{"users":{"name":{…}},"acls":{"User:name":{…}}}`, in files with a `"version"` if it is the controllers'.
"""

from __future__ import annotations

from brokerset_acl.access_book import AccessBook, acls_of, users_of
from brokerset_formats.config import fields


def book_values(book: AccessBook, version: int = 0) -> dict[str, object]:
    """What JSON says of a book, sorted by name; without a version if that is 0."""
    found: dict[str, object] = {"version": version} if version else {}
    found["users"] = {name: user.to_json() for name, user in sorted(book.users.items())}
    found["acls"] = {subject: acl.to_json() for subject, acl in sorted(book.acls.items())}
    return found


def read_book(data: bytes) -> tuple[int, AccessBook]:
    """The version, 0 without one, and the book. Raises FormatError."""
    found = fields.parse_object(data)
    version = found.get("version", 0)
    book = AccessBook()
    book.put(users_of(found), acls_of(found))
    return version if isinstance(version, int) else 0, book
