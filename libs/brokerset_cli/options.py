"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from brokerset_cli.folder import DEFAULT_DATA, DataFolder
from brokerset_cli.output import fail
from brokerset_cli.set_acl import use_acl_of
from brokerset_cli.set_tls import use_tls_of
from brokerset_runtime.remoting.signing import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from brokerset_spec.set_memory import CONTROLLER
from brokerset_spec.set_parts import DLEDGER

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
DEFAULT_CONTROLLER: Final = "127.0.0.1:9878"

F = TypeVar("F", bound=Callable[..., Any])

yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask.")
"""`--yes`: what a person would be asked is answered."""

json_option: Final = click.option("--json", "as_json", is_flag=True, help="Write JSON for scripts.")
"""`--json`: one JSON document instead of a table."""

mode_option: Final = click.option(
    "--mode",
    type=click.Choice([CONTROLLER, DLEDGER]),
    default=CONTROLLER,
    show_default=True,
    is_eager=True,
    help="`replication.mode` of the set: controllers give the roles, or each group is a DLedger.",
)
"""`--mode`: known before other options are read."""

data_option: Final = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA,
    metavar="DIR",
    envvar="BROKERSET_DATA",
    show_envvar=True,
    help=f"Folder of the local set. [default: ./{DEFAULT_DATA}]",
)
"""`--data DIR`: the folder of the local set."""

at_cluster_option: Final = click.option(
    "--cluster", "at_cluster", metavar="NAME", help="Only at the brokers of this cluster. [default: all]"
)
"""`--cluster NAME`: of several clusters at one name server."""


def address_option(name: str, text: str) -> Callable[[F], F]:
    """`--namesrv` or `--controller HOST:PORT`, also by the environment; `text` is its help."""
    return click.option(
        name,
        metavar="HOST:PORT",
        envvar=f"BROKERSET_{name.removeprefix('--').upper()}",
        show_envvar=True,
        help=text,
    )


def namesrv_options(function: F) -> F:
    """`--namesrv HOST:PORT` and `--data DIR`; use `namesrv_address` to choose."""
    default = f"[default: that of the set in --data, else {DEFAULT_NAMESRV}]"
    return data_option(address_option("--namesrv", f"Name servers, with ; between them. {default}")(function))


def controller_options(function: F) -> F:
    """`--controller HOST:PORT` and `--data DIR`; use `controller_address` to choose."""
    default = f"[default: those of the set in --data, else {DEFAULT_CONTROLLER}]"
    return data_option(
        address_option("--controller", f"Controllers, with ; between them. {default}")(function)
    )


def number_option(
    name: str,
    text: str,
    least: int,
    most: int | None = None,
    *,
    metavar: str = "N",
    default: int | None = None,
) -> Callable[[F], F]:
    """A whole number from `least` to `most`; `text` is its help, which shows a default that is not None."""
    return click.option(
        name,
        type=click.IntRange(least, most),
        metavar=metavar,
        default=default,
        show_default=default is not None,
        help=text,
    )


def controller_address(controller: str | None, data: Path) -> str:
    """Return the controllers to ask: the ones given, those of the set in `data`, or the usual one.

    Ends the command for a set that has none.
    """
    if not (found := observed_controllers(controller, data)):
        fail(
            f"the set in {data} has no controllers: each of its groups elects its leader by itself (dledger)",
            "see `brokerset status`; `brokerset switchover` lets another broker lead",
        )
    return found


def observed_controllers(controller: str | None, data: Path) -> str:
    """The same for who only looks; empty for a set that has no controllers."""
    found = _address(controller, data, "controllers", "--controller")
    if not found and (state := DataFolder(data).read_state()) is not None and state.is_dledger:
        return ""
    return found or DEFAULT_CONTROLLER


def namesrv_address(namesrv: str | None, data: Path) -> str:
    """Return the name servers to ask: the ones given, those of the set in `data`, or RocketMQ's default."""
    return _address(namesrv, data, "namesrv", "--namesrv") or DEFAULT_NAMESRV


def _use_acl_of(data: Path) -> None:
    try:
        use_acl_of(data)
    except (OSError, ValueError) as error:
        fail(
            f"the administrator of the set in {data} is not known: {error}",
            f"restore the file, or name a Super user in {ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}",
        )


def _address(given: str | None, data: Path, of_state: str, option: str) -> str:
    """What is given, or what the set of a folder has; empty when neither is there.

    A folder that was named and has no set ends the command: no other set is meant.
    """
    from brokerset_spec.setting_fields import address_problems

    if given:
        if problems := address_problems(given):
            raise click.BadParameter("; ".join(problems), param_hint=option)
        return given
    use_tls_of(data)
    _use_acl_of(data)
    state = DataFolder(data).read_state()
    context = click.get_current_context(silent=True)
    if state is None and context and context.get_parameter_source("data") is ParameterSource.COMMANDLINE:
        fail(f"no set has run in {data}", "give the folder that `up` was given with --data")
    return str(getattr(state, of_state, ""))
