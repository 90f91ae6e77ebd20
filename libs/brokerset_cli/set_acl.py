"""Access control of a local set: its administrator, and whom its processes sign as, made once in its folder.

Everything is in `acl/`: who may read that folder administers the set.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path
from typing import Final

from brokerset_runtime.files import write_atomically
from brokerset_runtime.remoting.signing import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from brokerset_runtime.settings import ENVIRONMENT_PREFIX
from brokerset_spec.access_settings import first_user_of, inner_credentials_of

FOLDER: Final = "acl"
ADMINISTRATOR, PROCESSES = "admin", "brokerset-processes"
"""Names of the two users."""

FIRST_USER: Final = "initAuthenticationUser"
INNER: Final = "innerClientAuthenticationCredentials"
"""Their settings."""

PASSWORD_BYTES: Final = 24

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9._+/=-]{7,}")
"""Passwords that YAML takes for texts as they stand."""


def administrator_file(data: Path) -> Path:
    """Name and password of the administrator, in the form of mqadmin's `conf/tools.yml`."""
    return data / FOLDER / "tools.yml"


def settings_file(data: Path) -> Path:
    """The settings that the set's processes get; the set checks users as long as it is there."""
    return data / FOLDER / "settings.json"


def has_acl(data: Path) -> bool:
    """Whether the set of this folder checks users."""
    return settings_file(data).exists()


def make_acl(data: Path) -> None:
    """Make both users unless they are there: those of the environment's settings, else new ones.

    The administrator's password is always that of `tools.yml`, so who changes it in the brokers changes it
    there. Raises `OSError`, and `ValueError` if the files are damaged.
    """
    folder = data / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    given = {name: os.environ.get(ENVIRONMENT_PREFIX + name, "") for name in (FIRST_USER, INNER)}
    if not administrator_file(data).exists():
        name, password = first_user_of(given[FIRST_USER]) or (ADMINISTRATOR, _new_password())
        text = f"accessKey: {name}\nsecretKey: {password}\n"
        write_atomically(administrator_file(data), text.encode(), mode=0o600)
    name, password = _administrator(data)
    if has_acl(data):
        inner = _settings(data)[INNER]
    else:
        processes, secret = inner_credentials_of(given[INNER]) or (PROCESSES, _new_password())
        inner = json.dumps({"accessKey": processes, "secretKey": secret})
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        FIRST_USER: json.dumps({"username": name, "password": password}),
        INNER: inner,
    }
    # Last: now the set checks users.
    write_atomically(settings_file(data), json.dumps(settings).encode(), mode=0o600)


def is_administrator(data: Path, name: str) -> bool:
    """Whether a set that checks users has this administrator, and this process signs so. Raises `ValueError`
    if the file is damaged."""
    return has_acl(data) and _administrator(data)[0] == name == os.environ.get(ACCESS_KEY_VARIABLE)


def check_password(password: str) -> None:
    """Raises `ValueError` for one that the administrator's file cannot have."""
    if not _PLAIN.fullmatch(password):
        raise ValueError(
            "it may need quotes in YAML: take 8 or more letters, digits and ._+/=-, a letter first"
        )


def change_administrator(data: Path, password: str) -> None:
    """Let commands, and the next start, have another password of the administrator. Raises `OSError`, and
    `ValueError` as `check_password`."""
    check_password(password)
    text = f"accessKey: {_administrator(data)[0]}\nsecretKey: {password}\n"
    write_atomically(administrator_file(data), text.encode(), mode=0o600)


def use_acl_of(data: Path) -> None:
    """Let this process, and those that it starts, administer the set of a folder.

    Whom the environment names already is left as it is. Raises `ValueError` if the file is damaged.
    """
    if ACCESS_KEY_VARIABLE not in os.environ and has_acl(data):
        os.environ[ACCESS_KEY_VARIABLE], os.environ[SECRET_KEY_VARIABLE] = _administrator(data)


def use_acl_of_own(data: Path) -> None:
    """Let this process, and those that it starts, be the set of a folder that checks users.

    Raises `ValueError` if the files are damaged.
    """
    if has_acl(data):
        os.environ |= {ENVIRONMENT_PREFIX + name: value for name, value in _settings(data).items()}
        os.environ[ACCESS_KEY_VARIABLE], os.environ[SECRET_KEY_VARIABLE] = _administrator(data)


def _administrator(data: Path) -> tuple[str, str]:
    lines = administrator_file(data).read_text(encoding="utf-8").splitlines()
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    try:
        return found["accessKey"], found["secretKey"]
    except KeyError as error:
        raise ValueError(f"{administrator_file(data).name} has no {error.args[0]}") from None


def _settings(data: Path) -> dict[str, str]:
    try:
        found = json.loads(settings_file(data).read_bytes())
    except ValueError as error:
        raise ValueError(f"{settings_file(data).name}: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"{settings_file(data).name} is not a table of texts")
    if inner_credentials_of(found.get(INNER, "")) is None:
        raise ValueError(f"{settings_file(data).name} has no {INNER}")
    return found


def _new_password() -> str:
    return secrets.token_urlsafe(PASSWORD_BYTES)
