"""Run a command and turn every way in which it can end into an exit code and a sentence."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from hangdoctor.cli.exit_codes import BUG, COULD_NOT_LOOK, DONE, INTERRUPTED, USAGE
from hangdoctor.cli.group import HANGDOCTOR, State
from hangdoctor.cli.streams import silence_stdout


def run_command(words: list[str]) -> int:
    """The exit code of ``hangdoctor WORDS…``."""
    state = State(say)
    try:
        answer = HANGDOCTOR.main(
            args=words,
            prog_name="hangdoctor",
            standalone_mode=False,
            auto_envvar_prefix="HANGDOCTOR",
            obj=state,
        )
        code = answer if isinstance(answer, int) else DONE
    except click.ClickException as error:
        error.show()
        code = USAGE
    except (KeyboardInterrupt, click.Abort):
        say(f"Interrupted. {state.kept}")
        code = INTERRUPTED
    except BrokenPipeError:
        silence_stdout()
        code = DONE
    except Exception as error:
        code = _explain(error, state)
    return _flush(code)


def say(text: str) -> None:
    """One line on stderr, also where stderr is ASCII or nobody reads it any more."""
    try:
        text.encode(getattr(sys.stderr, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        text = text.replace("→", "->").replace("…", "...").encode("ascii", "backslashreplace").decode()
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _explain(error: Exception, state: State) -> int:
    from hangdoctor.errors import HangdoctorError

    if isinstance(error, HangdoctorError):
        say(f"hangdoctor: {error.message}")
        if error.hint:
            say(f"  → {error.hint}")
        return error.exit_code
    import traceback

    say(traceback.format_exc().rstrip())
    say("This is a bug in hangdoctor. Please report it with the lines above and `hangdoctor --version`.")
    if state.bundle is not None:
        say(
            f"The capture {state.bundle} helps to find it; read it first, it holds your command lines and logs."
        )
    return BUG


def _flush(code: int) -> int:
    """Write out what is buffered while an error can still be told from success."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()  # `| head` has seen enough.
    except OSError as error:
        say(f"hangdoctor: standard output could not be written: {error.strerror}")
        silence_stdout()
        return COULD_NOT_LOOK
    return code
