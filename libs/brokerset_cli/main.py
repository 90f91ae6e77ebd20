"""The `brokerset` command: finds the subcommand and loads only the module it lives in.

As `kubectl-brokerset`, which kubectl runs for `kubectl brokerset`, it is the subcommand `kubernetes` alone.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Final

import click

COMMANDS: Final = {
    "up": ("brokerset_cli.up:up", "Run a BrokerSet on this machine."),
    "down": ("brokerset_cli.down:down", "Stop what `up` runs."),
    "status": ("brokerset_cli.status:status", "Show processes, controllers, replicas and what is wrong."),
    "topic": ("brokerset_cli.topics:topic", "Create, list, describe, rebalance and delete topics."),
    "subject": (
        "brokerset_cli.subjects:subject",
        "Create, scale, list, describe and delete ordered subjects.",
    ),
    "group": ("brokerset_cli.groups:group", "Consumer groups: create, describe, move, suspend, delete."),
    "user": ("brokerset_cli.access:user", "Users: who may send requests, and what they sign with."),
    "acl": ("brokerset_cli.access:acl", "Policies: what users may do."),
    "send": ("brokerset_cli.messages:send", "Send messages to a topic."),
    "recall": ("brokerset_cli.messages:recall", "Take back a message that waits for its time."),
    "consume": ("brokerset_cli.messages:consume", "Read messages from a topic."),
    "request": ("brokerset_cli.requests:request", "Send a message and wait for the reply to it."),
    "message": (
        "brokerset_cli.message_commands:message",
        "Single messages: traces, and checks that were given up.",
    ),
    "bench": ("brokerset_bench.command:bench", "Measure sending and consuming."),
    "controller": (
        "brokerset_cli.controllers:controller",
        "Members, leader and number of the controllers; rebuild.",
    ),
    "scale": ("brokerset_cli.broker_scaling:scale", "Run more or fewer brokers of a group."),
    "switchover": (
        "brokerset_cli.switchover:switchover",
        "Let another replica be master, without a failed send.",
    ),
    "fence": ("brokerset_cli.switchover:fence", "Let a replica serve nobody; it goes on following."),
    "unfence": ("brokerset_cli.switchover:unfence", "Let a fenced replica take part again."),
    "elect": ("brokerset_cli.replicas:elect", "Elect a master of a group."),
    "clean": ("brokerset_cli.replicas:clean", "Let the controllers forget replicas."),
    "replica": ("brokerset_cli.replicas:replica", "Give up a replica, or make a folder another one."),
    "upgrade": (
        "brokerset_cli.takeover.upgrade:upgrade",
        "Lead stores of older RocketMQ releases into controller mode.",
    ),
    "adopt": (
        "brokerset_cli.takeover.adopt:adopt",
        "Take over a running Java cluster by joining it, and give it back.",
    ),
    "export": ("brokerset_cli.store:export", "Add what is new in topics to a table of a data lake."),
    "store": ("brokerset_cli.store:store", "Check, count, move, compare and export store files."),
    "kubernetes": (
        "brokerset_cli.kubernetes.command:kubernetes",
        "Look at and work on BrokerSets on Kubernetes.",
    ),
    "demo": (
        "brokerset_bench.demo:demo",
        "Run a set, kill its parts, send and read messages, and check them.",
    ),
}
"""Where each subcommand is, and its line in the help."""

PLUGIN: Final = "kubectl-brokerset"
"""Name under which kubectl finds this program; kubectl takes `-` and `_` for the same."""


def is_plugin(program: str) -> bool:
    """Whether the program was started as kubectl's plugin; `program` is `sys.argv[0]`."""
    name = os.path.basename(program).removesuffix(".exe").removesuffix(".py")
    return name.replace("_", "-") == PLUGIN


def load(name: str) -> click.Command:
    """Import a subcommand of `COMMANDS`."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command), f"{attribute} of {module} is a command"
    return command


class LazyGroup(click.Group):
    """A group that knows its subcommands by name and loads one when it is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program: both entry points come here."""
        if not args and not kwargs and is_plugin(sys.argv[0]):
            return load("kubernetes").main(prog_name="kubectl brokerset")
        return super().__call__(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a subcommand; None when there is none of this name."""
        return load(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; a name that is none is answered with the nearest one."""
        from difflib import get_close_matches

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]}?" if near else " See brokerset --help."
            ctx.fail(f"There is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; files of settings and of TLS that are wrong end it as other mistakes do."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            from brokerset_cli.output import CommandFailed
            from brokerset_runtime.settings import SettingsError

            if not isinstance(error, SettingsError):
                raise
            raise CommandFailed(str(error), "correct that and try again") from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def show_versions(context: click.Context) -> None:
    """Print the version of the program and what is known of the native core, and end."""
    from importlib.metadata import version

    from brokerset_formats import native

    click.echo(f"brokerset, version {version('brokerset')}\nnative core: {native.description}")
    context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, asked: show_versions(context) if asked else None,
    help="Show the version, and whether the native core is used.",
)
def main() -> None:
    """RocketMQ-compatible messaging, on Kubernetes and on one machine.

    `brokerset up` starts controllers, name servers and brokers here; any RocketMQ client can use them.
    """


if __name__ == "__main__":
    main()
