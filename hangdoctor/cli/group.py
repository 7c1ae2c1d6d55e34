"""The commands by name. A command's module is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import click

from hangdoctor.cli.exit_codes import EXIT_CODES, USAGE

_COMMANDS = {
    "attach": ("attach", "Is a running server or job hung, and who holds it up?"),
    "watch": ("watch", "Look again and again; report and act when it stops."),
    "collect": ("collect", "Only take the capture; diagnose it elsewhere."),
    "analyze": ("analyze", "Diagnose captures, stack dumps and logs that are already there."),
    "diff": ("diff", "What moved between two captures, or within one."),
    "check": ("check", "Can I look? Permissions and tools, each with its remedy."),
    "explain": ("explain", "What a phase, rule, cause or role means."),
    "list": ("catalogue", "List what is known: phases, servers, collectors, formats."),
    "demo": ("demo", "Start a small real job that is stuck, and attach to it."),
    "completion": ("completion", "Print the completion script of a shell."),
}
"""Name -> module below this package, and what it does. The summaries stand here so that --help imports nothing."""

_PAGE = """\
Usage: hangdoctor [OPTIONS] COMMAND [ARGS]...

  Is it hung, slow or ready, and who holds it up? For LLM servers (SGLang,
  vLLM) and torch.distributed jobs. Looks from outside; by default it never
  stops, signals or writes to the target.

  The one to remember:  hangdoctor attach PID

Commands:
{commands}

Options:
  -V, --version  Versions of hangdoctor, py-spy and the knowledge files.
  -h, --help     Show this page; after a command: its options and examples.

Exit codes:
{codes}
"""


class State:
    """What must be known when a command ends otherwise than it should. (No dataclass: importing those takes 1 ms.)"""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.bundle: str | None = None
        """Where the capture has been saved."""

    @property
    def kept(self) -> str:
        """One sentence on what is left."""
        return f"What was seen is in {self.bundle}" if self.bundle else "Nothing was saved."


class _Group(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            # Wrong usage in every version of click, not only from 8.2 on.
            click.echo(ctx.get_help(), err=True)
            ctx.exit(USAGE)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command = import_module(f"hangdoctor.cli.{_COMMANDS[name][0]}").COMMAND
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            ctx.fail(_no_command(args[0]))
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        # Written out: click's formatter imports textwrap and shutil (with lzma, bz2, zlib), which costs as much as
        # all of hangdoctor's own start.
        commands = "\n".join(f"  {name:11} {summary}" for name, (_, summary) in _COMMANDS.items())
        codes = "\n".join(f"  {code:4} {meaning}" for code, meaning in EXIT_CODES)
        return _PAGE.format(commands=commands, codes=codes).rstrip()


def _no_command(word: str) -> str:
    if word.isdigit():
        return f"'{word}' is no command. For a process id: hangdoctor attach {word}"
    import difflib

    near = difflib.get_close_matches(word, _COMMANDS, 1, 0.5)
    return f"'{word}' is no command." + (f" Did you mean '{near[0]}'?" if near else "")


def _print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from hangdoctor.cli.version import version_text

        click.echo(version_text())
        ctx.exit(0)


_VERSION = click.Option(
    ["-V", "--version"],
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Versions.",
)
HANGDOCTOR = _Group(
    name="hangdoctor",
    params=[_VERSION],
    context_settings={"help_option_names": ["-h", "--help"]},
)
