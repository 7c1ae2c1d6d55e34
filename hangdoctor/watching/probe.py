"""Asking a health endpoint, from a child that is killed when its time is up: a trickle of bytes cannot hold us."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from hangdoctor.collect.deadline import Pending, Trouble
from hangdoctor.errors import WrongUsage
from hangdoctor.watching.triggers import ProbeAnswer

PROBE_S = 5.0


def check_url(url: str) -> str:
    """``url`` if it can be asked. Raises WrongUsage."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise WrongUsage(f"'{url}' is no URL to probe", hint="--probe http://127.0.0.1:30000/health")
    return url


class Probe:
    """One question, begun now and asked for later."""

    def __init__(self, url: str, deadline_s: float = PROBE_S) -> None:
        self._deadline_s = deadline_s
        self._pending: Pending[ProbeAnswer] = Pending(lambda: ask(url, deadline_s), deadline_s)

    def answer(self) -> ProbeAnswer:
        """What came of it, at the deadline at the latest."""
        try:
            answer = self._pending.result()
        finally:
            self._pending.end()
        if isinstance(answer, Trouble):
            text = (
                f"did not answer within {self._deadline_s:.3g} s"
                if answer.is_timeout
                else f"failed: {answer.reason}"
            )
            return ProbeAnswer(None, text)
        return answer


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirection is an answer; following it might ask another machine."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def ask(url: str, deadline_s: float) -> ProbeAnswer:
    """GET ``url``, without proxies and without following redirections."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay)
    began = time.monotonic()
    try:
        with opener.open(url, timeout=deadline_s) as response:
            status = int(response.status)
            response.read(4096)
    except urllib.error.HTTPError as error:
        status = error.code
    except (OSError, ValueError) as error:
        return _no_answer(error, deadline_s)
    return ProbeAnswer(status, f"answered {status} in {(time.monotonic() - began) * 1000:.0f} ms")


def _no_answer(error: Exception, deadline_s: float) -> ProbeAnswer:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ConnectionRefusedError):
        return ProbeAnswer(None, "refused the connection", is_refused=True)
    if isinstance(cause, TimeoutError):
        return ProbeAnswer(None, f"did not answer within {deadline_s:.3g} s")
    return ProbeAnswer(None, f"failed: {cause}")
