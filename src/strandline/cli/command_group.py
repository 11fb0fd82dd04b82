"""How commands are found, and how they end.

Exit codes: 0 done, 1 failed or partial, 2 wrong use, 3 held or outcome unknown. An error is two lines on
stderr, `strandline persist append: kind: message` and `hint: …`; a stack trace needs --debug.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

from strandline.cli.complete_names import COMPLETED, Named
from strandline.cli.missing_extras import remedy_of
from strandline.errors import HeldError, OutcomeUnknown, StrandlineError, UsageError


class Subcommand(NamedTuple):
    """Where a command is, and what the list of commands says of it."""

    place: str  # module:attribute
    help: str


class Group(click.Group):
    """A group that imports a command when it is named. Without one it runs `default`, if it has that."""

    def __init__(
        self,
        name: str,
        *,
        subcommands: Mapping[str, Subcommand],
        help: str,
        default: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, help=help, **options)
        self._subcommands = dict(subcommands)
        self._default = default

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # as click calls it
        return sorted(self._subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._subcommands:
            return None
        module, _, attribute = self._subcommands[cmd_name].place.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._subcommands[name].help) for name in self.list_commands(ctx)])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and (not args[0].startswith("-") or args[0] in ctx.help_option_names)
        if self._default and not is_named and not ctx.resilient_parsing:  # a shell asks for all of them
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Its commands, and what is known of them here: none is imported for that."""
        named = [
            CompletionItem(name, help=self._subcommands[name].help)
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]


class Root(Group):
    """The whole command line: the one place that turns what went wrong into an exit code."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        shown = click.version_option(
            version("strandline"), prog_name="strandline", message="%(prog)s %(version)s"
        )
        shown(self)

    def main(  # type: ignore[override]  # it always exits, whatever standalone_mode says
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        try:
            code = super().main(args, prog_name or "strandline", **{**extra, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = 2
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else "strandline"
            code = tell(path, "usage", error.format_message(), f"`{path} --help` shows how", 2)
        except click.ClickException as error:
            code = tell("strandline", "usage", error.format_message(), None, 2)
        except click.Abort:
            code = tell("strandline", "aborted", "nothing more was done", None, 1)
        sys.exit(code if isinstance(code, int) else 0)


class Command(click.Command):
    """A command whose function returns its exit code, or None for 0. A shell completes names in it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for param in self.params:
            if param.name in COMPLETED and param.type is click.STRING:
                param.type = Named(COMPLETED[param.name])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StrandlineError as error:
            if ctx.params.get("debug"):
                raise
            return tell(ctx.command_path, error.kind, error.message, error.hint, exit_code(error))
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            if isinstance(error, ImportError) and (lacking := remedy_of(error)) is not None:
                return tell(ctx.command_path, "not_installed", *lacking, 2)
            found = f"{type(error).__name__}: {error}"
            return tell(ctx.command_path, "failed", found, "--debug shows where it comes from", 1)


def command(name: str) -> Callable[[Callable[..., Any]], Command]:
    return click.command(name, cls=Command)


def exit_code(error: StrandlineError) -> int:
    if isinstance(error, (HeldError, OutcomeUnknown)):
        return 3
    return 2 if isinstance(error, UsageError) else 1


def tell(path: str, kind: str, message: str, hint: str | None, code: int) -> int:
    click.echo(f"{path}: {kind}: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    return code


def confirmed(question: str, *, yes: bool) -> bool:
    """Whether to go on with something that deletes. Where nobody can be asked, --yes must have been given."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{question} Nobody is there to ask", hint="add --yes, or --dry-run to see the count"
        )
    return click.confirm(question, err=True)
