"""A small real job that is stuck, slow or idle, to try hangdoctor on.

Everything is real: processes, collectives, locks, signals, files, compilers. Nothing is imitated, so what
`attach` says about a demo job is what it would say about a server in the same state.
"""

from __future__ import annotations

from hangdoctor.demo.job import RunningJob, run_scenario, start
from hangdoctor.demo.scenarios import DEFAULT_SCENARIO, SCENARIOS, Backend, Scenario

__all__ = ["DEFAULT_SCENARIO", "SCENARIOS", "Backend", "RunningJob", "Scenario", "run_scenario", "start"]
