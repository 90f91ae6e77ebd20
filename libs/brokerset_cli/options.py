"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from brokerset_cli.folder import DEFAULT_DATA, DataFolder, SetState
from brokerset_cli.output import fail

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
DEFAULT_CONTROLLER: Final = "127.0.0.1:9878"

F = TypeVar("F", bound=Callable[..., Any])


def data_option(function: F) -> F:
    """`--data DIR`: the folder of the local set."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        default=DEFAULT_DATA,
        metavar="DIR",
        envvar="BROKERSET_DATA",
        show_envvar=True,
        help=f"Folder of the local set. [default: ./{DEFAULT_DATA}]",
    )(function)


def namesrv_options(function: F) -> F:
    """`--namesrv HOST:PORT` and `--data DIR`; use `namesrv_address` to choose."""
    function = click.option(
        "--namesrv",
        metavar="HOST:PORT",
        envvar="BROKERSET_NAMESRV",
        show_envvar=True,
        help="Name servers, with ; between them. "
        f"[default: that of the set in --data, else {DEFAULT_NAMESRV}]",
    )(function)
    return data_option(function)


def controller_options(function: F) -> F:
    """`--controller HOST:PORT` and `--data DIR`; use `controller_address` to choose."""
    function = click.option(
        "--controller",
        metavar="HOST:PORT",
        envvar="BROKERSET_CONTROLLER",
        show_envvar=True,
        help="Controllers, with ; between them. "
        f"[default: those of the set in --data, else {DEFAULT_CONTROLLER}]",
    )(function)
    return data_option(function)


def controller_address(controller: str | None, data: Path) -> str:
    """Return the controllers to ask: the ones given, those of the set in `data`, or the usual one."""
    if controller:
        _check_addresses(controller, "--controller")
        return controller
    state = _set_in(data)
    return (state.controllers if state is not None else "") or DEFAULT_CONTROLLER


def _set_in(data: Path) -> SetState | None:
    """The set of a folder. One that was named and has none ends the command: no other set is meant."""
    state = DataFolder(data).read_state()
    context = click.get_current_context(silent=True)
    if state is None and context and context.get_parameter_source("data") is ParameterSource.COMMANDLINE:
        fail(f"no set has run in {data}", "give the folder that `up` was given with --data")
    return state


def _check_addresses(addresses: str, option: str) -> None:
    from brokerset_spec.broker_settings import address_problems

    if problems := address_problems(addresses):
        raise click.BadParameter("; ".join(problems), param_hint=option)


def json_option(function: F) -> F:
    """`--json`: one JSON document instead of a table."""
    return click.option("--json", "as_json", is_flag=True, help="Write JSON for scripts.")(function)


def namesrv_address(namesrv: str | None, data: Path) -> str:
    """Return the name servers to ask: the ones given, those of the set in `data`, or RocketMQ's default."""
    if namesrv:
        _check_addresses(namesrv, "--namesrv")
        return namesrv
    state = _set_in(data)
    return (state.namesrv if state is not None else "") or DEFAULT_NAMESRV
