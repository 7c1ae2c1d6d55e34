"""A command: help that ends with examples and exit codes, and signals that end it with what it has."""

from __future__ import annotations

from typing import Any

import click

from hangdoctor.cli.exit_codes import EXIT_CODES, OTHER_EXIT_CODES
from hangdoctor.cli.stopping import stoppable


class Command(click.Command):
    """A command of hangdoctor. `examples` are real command lines; the tests parse every one of them."""

    def __init__(
        self, *args: Any, examples: tuple[str, ...], is_diagnosis: bool = True, **kwargs: Any
    ) -> None:
        kwargs["context_settings"] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.is_diagnosis = is_diagnosis

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; signals end it with what it has."""
        with stoppable(ctx.obj.say):
            return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples as they are typed, then what the exit codes mean."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")
        with formatter.section("Exit codes"):
            formatter.write_dl(list(EXIT_CODES if self.is_diagnosis else OTHER_EXIT_CODES))
