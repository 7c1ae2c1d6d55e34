"""What a capture may do and how long it may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _allow_nothing(name: str) -> bool:
    del name
    return False


@dataclass(frozen=True, slots=True)
class Plan:
    """How often to look and at what. The defaults never stop, signal or write to the target."""

    snapshots: int = 3
    offsets_s: tuple[float, ...] = (0.0, 3.0, 10.0)
    """Seconds after the first look; further looks follow at the last spacing."""
    interval_s: float | None = None
    """Equal spacing instead of ``offsets_s``."""
    native: bool = False
    """One more round of stacks with native frames at the end; stops each process for 0.3 to 2 s."""
    allow_pause: bool = False
    """Processes whose stacks move too fast may be stopped for some milliseconds."""
    logs: tuple[str, ...] = ()
    """Log files given by the user, besides those that are found."""
    is_env_allowed: Callable[[str], bool] = _allow_nothing
    use_gpu: bool = True
    use_locks: bool = True
    use_flight: bool = True
    use_spin: bool = True
    use_ras: bool = False
    """Ask NCCL's RAS service; off, because such questions have crashed jobs."""
    force_ras: bool = False
    """Ask even where it is known to be dangerous."""
    look_s: float = 30.0
    """One look ends after about this many seconds with what it has."""
    knowledge_revision: str | None = None

    def offset_s(self, index: int) -> float:
        """When look ``index`` (from 0) is due, in seconds after the first."""
        if self.interval_s is not None:
            return index * self.interval_s
        if index < len(self.offsets_s):
            return self.offsets_s[index]
        last = self.offsets_s[-1] if self.offsets_s else 0.0
        spacing = last - self.offsets_s[-2] if len(self.offsets_s) > 1 else 3.0
        return last + spacing * (index - len(self.offsets_s) + 1)
