"""Secrets in command lines, environments, logs, URLs and any other text become ``***``.

Two ways lead to a secret: where it stands (after ``--api-key``, in ``HF_TOKEN``, before the ``@`` of a URL) and what it
looks like (``hf_…``, a JWT, a private key). A value found in the first way is then masked wherever else it occurs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from hangdoctor.knowledge.redaction import Redaction

MASK = "***"
_MIN_SPREAD = 6
"""A value of fewer characters is masked where it stands but not sought elsewhere: it would hit innocent words."""
_MISSING = 4
"""argparse accepts unambiguous prefixes of flags: ``--api-k``. With more letters missing it may be another flag."""
_UNSET = frozenset(("", "none", "null", "true", "false", "unset", MASK, "**********"))
# Applied at the place where a name says that a secret follows: a list, a quoted text, a wrapped one, or a word.
_VALUE = re.compile(
    r"""(?P<list>[\[({](?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\])}"'])*)|"""
    r"""(?:[bruBRU]{1,2}|SecretStr\()?(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\)?"""
    r"""|[^\s"',;)}\]&]+"""
)
_QUOTED = re.compile(r""""((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'""")
_ARROW = re.compile(r">?\s*")
_SCHEME = re.compile(r"(?i)(?:bearer|basic|token|digest|apikey|negotiate|aws4-hmac-sha256)\b[^\"'\n]*")
_COOKIE = re.compile(r"(?i)(?P<head>\b(?:set-)?cookie[\"']?\s*[:=]\s*[\"']?)[^\"'\n]+")
_FLAG = re.compile(r"(?<![\w-])--?(?P<name>[A-Za-z][\w-]*)(?P<gap>=|\s+)(?=[^\s-])")
_MORE_VALUES = re.compile(r"\s+(?!-)(?:\"[^\"]*\"|'[^']*'|\S+)")
_PARAMETER = re.compile(r"(?P<head>[?&](?P<name>[\w.-]+)=)(?P<value>[^&\s\"'#<>]+)")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# What users asked the server; logged with --enable-log-requests, --log-requests and in crash dumps.
_PROMPT = re.compile(
    r"""(?P<head>\b(?:prompt|text|input_ids|prompt_token_ids|messages|image_data)["']?\s*[:=]\s*)"""
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\]]*\]?)"""
)
# No name and no number is that long. What is left of such a blob says what it was, and patterns that look for a word
# within a run of letters stay fast: they take the square of its length.
_BLOB = re.compile(r"([\w+=.-]{40})[\w+=.-]{260,}")
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_KEY_END = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")


class SecretMask:
    """A visitor that masks secrets and remembers their values."""

    def __init__(self, rules: Redaction) -> None:
        self._rules = rules
        self._known_flags = sorted(rules.flags | rules.list_flags)
        self._found: set[str] = set()
        self._spread: re.Pattern[str] | None = None
        self._by_shape: dict[str, str] = {}
        self._done: dict[str, str] = {}

    @property
    def count(self) -> int:
        """How many values are known as secrets so far."""
        return len(self._found)

    # -- visitor ----------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Any text."""
        done = self._done.get(text)
        if done is None:
            done = self._done[text] = self._spread_over(self._mask_shape(text))
        return done

    def version(self, text: str) -> str:
        """A version number."""
        return self.text(text)

    def command(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """An argument vector; a single element with blanks in it is a command line in one text."""
        masked = list(command)
        index = 0
        while index < len(command):
            argument = command[index]
            flag, equals, value = argument.partition("=")
            index += 1
            if not flag.startswith("-") or " " in flag:
                masked[index - 1] = self._mask_argument(argument)
            elif equals:
                masked[index - 1] = f"{flag}={self._mask_value(flag, value)}"
            elif self._is_secret(flag) or self._is_json(flag):
                last = self._last_value(flag, command, index)
                masked[index:last] = [self._mask_value(flag, value) for value in command[index:last]]
                index = last
        return tuple(self.text(argument) for argument in masked)

    def environ(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Variables on the allow-list with their values; of secrets only that they are set; no others."""
        kept = {}
        for name, value in environ.items():
            if self._is_secret(name):
                kept[name] = self._keep_secret(value)
            elif self._rules.is_env_allowed(name):
                kept[name] = self.text(value)
        return kept

    def lines(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        """Log lines, which may hold a key over several of them, and what users asked."""
        masked = []
        in_key = False
        for line in lines:
            if in_key:
                ends = _KEY_END.search(line)
                line, in_key = (MASK, True) if ends is None else (MASK + line[ends.end() :], False)
            else:
                in_key = bool(_KEY_BEGIN.search(line)) and not _KEY_END.search(line)
            masked.append(self.text(_PROMPT.sub(lambda match: f"{match['head']}{MASK}", line)))
        return tuple(masked)

    # -- by place ---------------------------------------------------------------------------------

    def _is_secret(self, name: str) -> bool:
        plain = _CAMEL.sub("_", name.lstrip("-")).replace("-", "_").replace(".", "_").lower()
        if self._rules.is_secret_name(name) or self._rules.is_secret_name(plain):
            return True
        if not name.startswith("--") or not plain:
            return False
        return any(
            flag.startswith(plain) and len(flag) - len(plain) <= _MISSING for flag in self._known_flags
        )

    def _is_json(self, flag: str) -> bool:
        return flag.lstrip("-").replace("-", "_").lower() in self._rules.json_flags

    def _last_value(self, flag: str, command: tuple[str, ...], start: int) -> int:
        plain = flag.lstrip("-").replace("-", "_").lower()
        several = any(name.startswith(plain) for name in self._rules.list_flags)
        end = start
        while end < len(command) and not (command[end].startswith("--") and end > start):
            end += 1
            if not several:
                break
        # A flag may stand alone (`--hf-token` reads the value from a file): the next flag is no value of it.
        is_alone = start < len(command) and re.match(r"--[a-z]", command[start]) is not None
        return start if is_alone else end

    def _mask_value(self, flag: str, value: str) -> str:
        if self._is_secret(flag):
            return self._keep_secret(value)
        if self._is_json(flag):
            return self._mask_json(value)
        return value

    def _mask_argument(self, argument: str) -> str:
        name, equals, value = argument.partition("=")
        if equals and name.isidentifier() and self._is_secret(name):  # env HF_TOKEN=… vllm serve
            return f"{name}={self._keep_secret(value)}"
        return argument

    def _mask_json(self, text: str) -> str:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        masked = self._mask_tree(value)
        return text if masked == value else json.dumps(masked)

    def _mask_tree(self, value: object) -> object:
        if isinstance(value, dict):
            return {
                key: self._keep_tree(item) if self._is_secret(key) else self._mask_tree(item)
                for key, item in value.items()
            }
        return [self._mask_tree(item) for item in value] if isinstance(value, list) else value

    def _keep_tree(self, value: object) -> object:
        if isinstance(value, dict):
            return {key: self._keep_tree(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._keep_tree(item) for item in value]
        return self._keep_secret(str(value)) if isinstance(value, str | int) and value != "" else value

    def _keep_secret(self, value: str, *, is_sure: bool = True) -> str:
        """Mask a secret and remember it; whether it was set at all is worth knowing, so nothing stays nothing.

        A value that only a word in a log calls a secret is sought elsewhere if it also looks like one.
        """
        if value.lower() in _UNSET:
            return value
        # Whole words of small letters ("--api-key sglang") would tear apart paths that name the server.
        is_word = value.isalpha() and value.islower()
        wanted = _MIN_SPREAD if is_sure and not is_word else 12
        is_known = len(value) < wanted or value in self._found
        if not is_known and (is_sure or any(map(str.isdigit, value))):
            self._found.add(value)
            self._spread = None
            self._done.clear()
        return MASK

    # -- by shape, in free text -------------------------------------------------------------------

    def _mask_shape(self, text: str) -> str:
        done = self._by_shape.get(text)
        if done is None:
            done = self._by_shape[text] = self._mask_text(text)
        return done

    def _mask_text(self, text: str) -> str:
        rules = self._rules
        if len(text) < 4:
            return text
        text = _BLOB.sub(r"\1…", text)
        for pattern in rules.tokens:
            text = pattern.sub(self._mask_token, text)
        if "://" in text:
            text = rules.url_userinfo.sub(self._mask_userinfo, text)
        if "=" in text and ("?" in text or "&" in text):
            text = _PARAMETER.sub(self._mask_parameter, text)
        if "-" in text:
            text = self._mask_flags(text)
        if ":" in text or "=" in text:
            text = self._mask_assignments(_COOKIE.sub(lambda match: f"{match['head']}{MASK}", text))
        return text

    def _mask_token(self, match: re.Match[str]) -> str:
        keep = match.groupdict().get("keep") or ""
        self._keep_secret(match[0][len(keep) :])
        return f"{keep}{MASK}"

    def _mask_userinfo(self, match: re.Match[str]) -> str:
        user, colon, password = match["secret"].partition(":")
        self._keep_secret(password if colon else user)
        start, end = match.span("secret")
        return f"{match[0][: start - match.start()]}{MASK}{match[0][end - match.start() :]}"

    def _mask_parameter(self, match: re.Match[str]) -> str:
        if match["name"] in self._rules.url_parameters or self._is_secret(match["name"]):
            return match["head"] + self._keep_secret(match["value"])
        return match[0]

    def _mask_flags(self, text: str) -> str:
        parts, end = [], 0
        for match in _FLAG.finditer(text):
            if match.start() < end or not self._is_secret(f"--{match['name']}"):
                continue
            value = _VALUE.match(text, match.end())
            if value is None:
                continue
            parts += [text[end : match.end()], self._mask_quoted(value)]
            end = value.end()
            plain = match["name"].replace("-", "_").lower()
            while plain in self._rules.list_flags and (more := _MORE_VALUES.match(text, end)):
                self._keep_secret(more[0].strip().strip("\"'"))
                end = more.end()
        return "".join([*parts, text[end:]])

    def _mask_assignments(self, text: str) -> str:
        parts, end = [], 0
        for match in self._rules.assignments.finditer(text):
            # `name => value`: the pattern may have taken the arrow's point for the value.
            start = _ARROW.match(text, match.start("value")).end()  # type: ignore[union-attr]
            if start < end or not self._is_secret(match["name"]):
                continue
            scheme = _SCHEME.match(text, start)
            value = scheme or _VALUE.match(text, start)
            if value is None:
                continue
            if match["name"].lower() == "token" and value[0].isdigit():  # a token's number, not a secret
                continue
            masked = MASK if scheme else self._mask_quoted(value, is_sure=False)
            parts += [text[end:start], masked]
            end = value.end()
        return "".join([*parts, text[end:]])

    def _mask_quoted(self, value: re.Match[str], *, is_sure: bool = True) -> str:
        quoted, several = value["quoted"], value["list"]
        if several:
            for part in _QUOTED.finditer(several):
                self._keep_secret(part[1] or part[2] or "", is_sure=is_sure)
            return several[0] + MASK
        if quoted is None:
            return self._keep_secret(value[0], is_sure=is_sure)
        inner = self._keep_secret(quoted[1:-1], is_sure=is_sure)
        return value[0].replace(quoted, f"{quoted[0]}{inner}{quoted[0]}", 1)

    def _spread_over(self, text: str) -> str:
        if not self._found:
            return text
        if self._spread is None:
            # The longest first: a secret may begin with another one.
            ordered = sorted(self._found, key=lambda secret: (-len(secret), secret))
            self._spread = re.compile("|".join(map(re.escape, ordered)))
        return self._spread.sub(MASK, text)
