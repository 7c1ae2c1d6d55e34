"""What may be shown of command lines, environments and logs: typed rules, applied in `redact.py`."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Redaction:
    """Rules for what must not leave the machine. Names are compared in lower case with ``-`` as ``_``."""

    flags: frozenset[str]
    """Command-line flags whose value is a secret, without dashes: ``api_key``."""
    list_flags: frozenset[str]
    """Flags that take several values: all up to the next flag."""
    json_flags: frozenset[str]
    """Flags whose value is JSON that may hold secrets: walk it by key name."""
    secret_name: re.Pattern[str]
    """A flag, variable, JSON key or log key that names a secret."""
    harmless_name: re.Pattern[str]
    """Names that only look so: ``max_total_tokens``, ``num_key_value_heads``. Stronger than ``secret_name``."""
    secret_variables: frozenset[str]
    """Environment variables whose value is a secret, exact names."""
    tokens: tuple[re.Pattern[str], ...]
    """Values that are secrets wherever they stand; group ``keep`` (where there is one) may be shown."""
    assignments: re.Pattern[str]
    """``key: value`` and ``key='value'`` in free text, with groups ``name`` and ``value``."""
    url_userinfo: re.Pattern[str]
    """``user:password`` in a URL, group ``secret``."""
    url_parameters: frozenset[str]
    """Query parameters of presigned URLs."""
    environ_prefixes: tuple[str, ...]
    """Environment variables that may be shown: by the beginning of the name …"""
    environ_names: frozenset[str]
    """… or by the whole name."""

    def is_secret_name(self, name: str) -> bool:
        """Whether a flag, variable or key names a secret: ``--api-key``, ``HF_TOKEN``; not ``--max-total-tokens``."""
        plain = name.lstrip("-").replace("-", "_").lower()
        if plain in self.flags or plain in self.list_flags or name in self.secret_variables:
            return True
        return self.secret_name.search(plain) is not None and self.harmless_name.search(plain) is None

    def is_env_allowed(self, name: str) -> bool:
        """Whether an environment variable may be shown with its value: on the allow-list and not a secret."""
        if self.is_secret_name(name):
            return False
        return name in self.environ_names or name.startswith(self.environ_prefixes)
