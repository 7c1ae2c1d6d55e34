"""``hangdoctor completion SHELL``."""

from __future__ import annotations

import click

from hangdoctor.cli.command import Command
from hangdoctor.cli.group import HANGDOCTOR

_SHELLS = ("bash", "zsh", "fish")


def _completion(shell: str) -> int:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(HANGDOCTOR, {}, "hangdoctor", "_HANGDOCTOR_COMPLETE").source())
    return 0


COMMAND = Command(
    name="completion",
    help="Print a script that completes commands, options and their values.",
    params=[click.Argument(["shell"], type=click.Choice(_SHELLS))],
    callback=_completion,
    is_diagnosis=False,
    examples=(
        'eval "$(hangdoctor completion bash)"',
        "hangdoctor completion zsh > ~/.zfunc/_hangdoctor",
        "hangdoctor completion fish > ~/.config/fish/completions/hangdoctor.fish",
    ),
)
