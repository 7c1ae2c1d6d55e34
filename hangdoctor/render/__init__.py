"""Report formats. One public module here is one format; modules with a leading underscore serve them.

A renderer is a pure function of a `Report`: it reads no file, no clock and no machine, and it treats every text in
the report as captured text, that is, as hostile to its own markup.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module

from hangdoctor.render._base import Renderer, RenderOptions

__all__ = ["RENDERERS", "RenderOptions", "Renderer"]


class _Registry(Mapping[str, Renderer]):
    # Names come from the file names and a module is imported when its format is asked for: rich alone costs more
    # than the rest of the start-up. `json_report` is the format `json`; the suffix keeps it off the stdlib's name.
    def __init__(self) -> None:
        modules = (info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
        self._modules = {name.removesuffix("_report"): name for name in modules}

    def __getitem__(self, name: str) -> Renderer:
        renderer = import_module(f"{__name__}.{self._modules[name]}").RENDERER
        assert isinstance(renderer, Renderer)
        return renderer

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._modules))

    def __len__(self) -> int:
        return len(self._modules)


RENDERERS: Mapping[str, Renderer] = _Registry()
"""Format name -> renderer."""
