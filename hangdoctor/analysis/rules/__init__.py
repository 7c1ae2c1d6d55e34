"""One file a rule. A rule speaks or stays silent; the first in ``order`` that speaks decides."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from hangdoctor.analysis.findings import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of this package, in the order in which they are asked."""
    modules = (import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__))
    return tuple(sorted((module.RULE for module in modules), key=lambda rule: rule.order))
