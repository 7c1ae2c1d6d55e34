"""Options that several commands share, in groups; each group has the dataclass that its values become.

Every option can be set in the environment as HANGDOCTOR_<NAME>; what is typed wins.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hangdoctor.errors import WrongUsage

_T = TypeVar("_T")


def take(kind: type[_T], values: dict[str, Any]) -> _T:
    """Pick the values of one group out of a command's parameters."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in names if name in values})


if TYPE_CHECKING:
    _TextType = click.ParamType[str]
else:
    _TextType = click.ParamType  # generic only from click 8.2 on


class _Format(_TextType):
    # A click.Choice would need the names of all formats when the command is defined, and so their package.
    name = "format"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        from hangdoctor.render import RENDERERS

        return "|".join(RENDERERS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from hangdoctor.render import RENDERERS

        if value not in RENDERERS:
            self.fail(f"'{value}' is no format; there are {', '.join(RENDERERS)}", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from hangdoctor.render import RENDERERS

        return [CompletionItem(name) for name in RENDERERS if name.startswith(incomplete)]


def _option(*names: str, **settings: Any) -> click.Option:
    option = click.Option(names, show_envvar=False, **settings)
    if settings.get("hidden") is None and "envvar" not in settings:
        option.envvar = f"HANGDOCTOR_{(option.name or '').upper()}"
    return option


# -- which job ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """The job that is meant; nothing at all stands for the only server there is."""

    pid: int | None
    name: str | None
    port: int | None
    rendezvous: str | None = None


def target_options() -> list[click.Parameter]:
    """PID, --name, --port and --rendezvous."""
    return [
        click.Argument(["pid"], type=int, required=False, metavar="[PID]"),
        _option(
            "--name", metavar="PATTERN", help="The job whose command line or title matches this pattern."
        ),
        _option(
            "--port", type=click.IntRange(1, 65535), metavar="N", help="The job that listens on this port."
        ),
        _option(
            "--rendezvous",
            metavar="HOST:PORT",
            help="The job whose ranks meet at this address (MASTER_ADDR).",
        ),
    ]


# -- on which hosts -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostsChoice:
    """Where to look, and how to get there."""

    hosts: str | None
    via: str
    fanout: int | None
    connect_timeout: float
    host_timeout: float | None
    remote_python: str | None


def hosts_options() -> list[click.Parameter]:
    """--hosts, --via, --fanout, --connect-timeout, --host-timeout and --remote-python."""
    return [
        _option("--hosts", metavar="NODESET",
                help="Look on all these hosts at once: 'node[1-4]', '@group'. Needs hangdoctor[cluster]."),
        _option("--via", metavar="HOW", default="ssh", show_default=True,
                help="How to get there: ssh, srun, kubectl or docker, each with options of its own, or exec:TEMPLATE."),
        _option("--fanout", type=click.IntRange(1, 65536), metavar="N",
                help="So many hosts at once.  [default: all, for they are to be looked at together]"),
        _option("--connect-timeout", type=click.FloatRange(0.5, 600), metavar="S", default=10.0, show_default=True,
                help="Seconds after which a host that does not answer is given up."),
        _option("--host-timeout", type=click.FloatRange(1, 7200), metavar="S",
                help="Seconds that the looks may take on a host.  [default: what they should take, and 40]"),
        _option("--remote-python", metavar="COMMAND",
                help="Python on the hosts: '/opt/venv/bin/python', 'sudo -n python3'.  [default: the first from 3.10]"),
    ]  # fmt: skip


# -- how to look ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookChoice:
    """How often to look, and what may be done to the target."""

    snapshots: int | None
    interval: float | None
    native: bool
    allow_pause: bool
    log: tuple[str, ...]
    ras: bool = False
    ras_force: bool = False


def look_options() -> list[click.Parameter]:
    """--snapshots, --interval, --native, --allow-pause, --ras and --log."""
    return [
        _option("--snapshots", type=click.IntRange(1, 1000), metavar="N",
                help="How many looks.  [default: 3, fewer when two prove it]"),
        _option("--interval", type=click.FloatRange(0.05, 3600), metavar="S",
                help="Seconds between looks.  [default: at 0, 3 and 10 s]"),
        _option("--native", is_flag=True, help="Also native frames; stops each process for 0.3 to 2 s."),
        _option("--allow-pause", is_flag=True,
                help="Stop a process for milliseconds where its stack cannot be read otherwise."),
        _option("--ras", is_flag=True,
                help="Also ask NCCL's RAS service how far each rank is; such questions have crashed jobs."),
        _option("--ras-force", is_flag=True, help="With --ras: ask even where it is known to be dangerous."),
        _option("--log", multiple=True, metavar="FILE", help="A log of the job, besides those that are found."),
    ]  # fmt: skip


# -- what to keep ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeepChoice:
    """Where the capture goes."""

    bundle: str | None
    no_bundle: bool
    force: bool


def keep_options() -> list[click.Parameter]:
    """--bundle and --no-bundle."""
    return [
        _option(
            "--bundle", metavar="FILE", help="Save the capture here.  [default: hangdoctor-PID-TIME.hang]"
        ),
        _option("--no-bundle", is_flag=True, help="Do not save the capture."),
    ]


# -- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReportChoice:
    """The form of the report and where it goes."""

    format: str | None
    json: bool
    output: str | None
    force: bool
    detail: bool
    no_color: bool
    github_issue: bool = False

    @property
    def is_file(self) -> bool:
        """Whether the report goes to a file."""
        return self.output not in (None, "-")

    def check(self, *, is_kept: bool = True) -> None:
        """Raise WrongUsage for what contradicts itself. ``is_kept``: the report can be made again from a file."""
        if self.json and self.format not in (None, "json"):
            raise WrongUsage(f"--json and --format {self.format} contradict each other")
        if not self.github_issue or self.is_file:
            return
        if self.json or self.output == "-" or self.format not in (None, "markdown"):
            raise WrongUsage(
                "--github-issue prints the command instead of the report",
                hint="-o FILE keeps the report, too",
            )
        if not is_kept:
            raise WrongUsage("--github-issue needs a file for the text of the issue", hint="-o report.md")


def report_options() -> list[click.Parameter]:
    """-f, --json, -o, --force, --detail, --no-color and --github-issue."""
    return [
        _option("-f", "--format", type=_Format(),
                help="Form of the report.  [default: by the name of -o, else terminal]"),
        _option("--json", is_flag=True, help="Same as --format json."),
        _option("-o", "--output", metavar="FILE", help="Write the report here; '-' is standard output."),
        force_option(),
        _option("--detail", is_flag=True, help="Everything: all threads, whole stacks, the end of the log."),
        _option("--no-color", is_flag=True, help="No colour. (NO_COLOR, FORCE_COLOR and TERM=dumb are heeded.)"),
        _option("--github-issue", is_flag=True,
                help="Print only the command that opens an issue with the report as its text; sends nothing."),
    ]  # fmt: skip


def force_option() -> click.Option:
    """--force."""
    return _option("--force", is_flag=True, help="Overwrite files that are there.")


# -- the conversation -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TalkChoice:
    """How much to say on stderr, and what must not be said anywhere."""

    quiet: bool
    verbose: int
    redact: str
    knowledge: str | None


def talk_options() -> list[click.Parameter]:
    """-q, -v, --redact and --knowledge."""
    return [
        _option("--redact", type=click.Choice(["secrets", "strict"]), default="secrets", show_default=True,
                help="Mask secrets; 'strict' also renames users, hosts, addresses and home folders."),
        knowledge_option(),
        _option("-q", "--quiet", is_flag=True, help="Say nothing but errors on standard error."),
        _option("-v", "--verbose", count=True, help="Say more; twice: all that could not be seen."),
    ]  # fmt: skip


def knowledge_option() -> click.Option:
    """--knowledge."""
    return _option("--knowledge", metavar="DIR", help="Use the knowledge files (*.toml) of this folder.")
