"""Access control of a local set: what is made in its folder, and what commands and processes get of it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli.access import user
from brokerset_cli.set_acl import (
    administrator_file,
    change_administrator,
    has_acl,
    is_administrator,
    make_acl,
    settings_file,
    use_acl_of,
    use_acl_of_own,
)
from brokerset_runtime.remoting.signing import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE

OF_SETTINGS = tuple(
    f"BROKERSET_SET_{name}"
    for name in (
        "authenticationEnabled",
        "authorizationEnabled",
        "initAuthenticationUser",
        "innerClientAuthenticationCredentials",
    )
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a user or settings, also after the test."""
    for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, *OF_SETTINGS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_only_the_owner_of_the_folder_can_read_the_passwords(tmp_path: Path) -> None:
    make_acl(tmp_path)

    for path in (administrator_file(tmp_path), settings_file(tmp_path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "acl").stat().st_mode) == 0o700


def test_processes_and_commands_know_the_same_administrator(tmp_path: Path) -> None:
    """Processes sign as somebody else, whom commands do not know."""
    make_acl(tmp_path)
    use_acl_of(tmp_path)
    signs = os.environ[ACCESS_KEY_VARIABLE], os.environ[SECRET_KEY_VARIABLE]
    assert not any(name in os.environ for name in OF_SETTINGS)

    use_acl_of_own(tmp_path)

    *switches, first, inner = (json.loads(os.environ[name]) for name in OF_SETTINGS)
    assert (first["username"], first["password"]) == signs
    assert inner["accessKey"] != first["username"]
    assert inner["secretKey"] != first["password"]
    assert switches == [True, True]


def test_passwords_stay_over_starts_and_differ_between_sets(tmp_path: Path) -> None:
    """Also after a start without access control in between: brokers keep the administrator's password."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        make_acl(tmp_path / name)
    before, settings = administrator_file(tmp_path / "one").read_text(), settings_file(tmp_path / "one")
    make_acl(tmp_path / "one")
    assert administrator_file(tmp_path / "one").read_text() == before

    settings.unlink()
    assert not has_acl(tmp_path / "one")
    make_acl(tmp_path / "one")

    assert administrator_file(tmp_path / "one").read_text() == before
    assert administrator_file(tmp_path / "other").read_text() != before


def test_a_password_that_is_changed_in_the_file_is_that_of_the_next_start(tmp_path: Path) -> None:
    """Also of servers that know no users but those of their settings. Processes sign as before."""
    make_acl(tmp_path)
    before = json.loads(settings_file(tmp_path).read_bytes())
    administrator_file(tmp_path).write_text("accessKey: admin\nsecretKey: changed\n")

    make_acl(tmp_path)

    after = json.loads(settings_file(tmp_path).read_bytes())
    assert json.loads(after["initAuthenticationUser"]) == {"username": "admin", "password": "changed"}
    assert {**before, "initAuthenticationUser": ""} == {**after, "initAuthenticationUser": ""}


def test_only_the_administrator_of_the_folder_has_a_password_there(tmp_path: Path) -> None:
    """Who signs as somebody else changes nothing in the folder; a password that YAML reads as something else
    is refused."""
    assert not is_administrator(tmp_path, "admin")
    make_acl(tmp_path)
    assert not is_administrator(tmp_path, "admin"), "this process does not sign so yet"
    use_acl_of(tmp_path)
    assert is_administrator(tmp_path, "admin")
    assert not is_administrator(tmp_path, "app")

    change_administrator(tmp_path, "another-password")
    assert administrator_file(tmp_path).read_text() == "accessKey: admin\nsecretKey: another-password\n"
    assert stat.S_IMODE(administrator_file(tmp_path).stat().st_mode) == 0o600
    for password in ("a: b # c", "12345678", "true"):
        with pytest.raises(ValueError, match="quotes"):
            change_administrator(tmp_path, password)


def test_a_password_that_the_folder_cannot_have_is_refused_before_anything_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the cluster had it, and the folder's commands would be refused."""
    monkeypatch.setenv("BROKERSET_PASSWORD", "a: b # c")
    make_acl(tmp_path)
    use_acl_of(tmp_path)

    found = CliRunner().invoke(user, ["password", "admin", "--data", str(tmp_path)])

    assert found.exit_code != 0
    assert "nothing was changed: it may need quotes in YAML" in found.output


def test_users_of_the_settings_of_the_environment_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers of the folder may know them: the set checked users without the switch before."""
    first, inner = {"username": "root", "password": "r"}, {"accessKey": "in", "secretKey": "i"}
    monkeypatch.setenv(OF_SETTINGS[2], json.dumps(first))
    monkeypatch.setenv(OF_SETTINGS[3], json.dumps(inner))

    make_acl(tmp_path)

    assert administrator_file(tmp_path).read_text() == "accessKey: root\nsecretKey: r\n"
    found = json.loads(settings_file(tmp_path).read_bytes())
    assert json.loads(found[OF_SETTINGS[2].removeprefix("BROKERSET_SET_")]) == first
    assert json.loads(found[OF_SETTINGS[3].removeprefix("BROKERSET_SET_")]) == inner


def test_a_user_of_the_environment_goes_before_the_administrator_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For commands; processes of the set are its own."""
    make_acl(tmp_path)
    monkeypatch.setenv(ACCESS_KEY_VARIABLE, "app")
    monkeypatch.setenv(SECRET_KEY_VARIABLE, "k")

    use_acl_of(tmp_path)
    assert (os.environ[ACCESS_KEY_VARIABLE], os.environ[SECRET_KEY_VARIABLE]) == ("app", "k")
    use_acl_of_own(tmp_path)

    assert os.environ[ACCESS_KEY_VARIABLE] == "admin"


def test_without_access_control_nothing_is_used(tmp_path: Path) -> None:
    use_acl_of(tmp_path)
    use_acl_of_own(tmp_path)

    assert ACCESS_KEY_VARIABLE not in os.environ
    assert not any(name in os.environ for name in OF_SETTINGS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tools.yml", "accessKey: admin\n"),
        ("settings.json", "{"),
        ("settings.json", '{"a": 1}'),
        ("settings.json", "{}"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: str) -> None:
    """Nothing is made in their place: brokers know the old passwords."""
    make_acl(tmp_path)
    (tmp_path / "acl" / name).write_text(content)

    with pytest.raises(ValueError, match=name):
        make_acl(tmp_path)

    assert (tmp_path / "acl" / name).read_text() == content
