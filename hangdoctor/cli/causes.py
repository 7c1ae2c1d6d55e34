"""What each cause id of a verdict means, for `explain`."""

from __future__ import annotations

from collections.abc import Mapping

from hangdoctor.report import Cause

CAUSES: Mapping[Cause, str] = {
    Cause.LOCK_CYCLE: (
        "Threads hold what each other wants; none can ever go on. Fix the order of taking the locks."
    ),
    Cause.LOCK_HELD: (
        "Everything waits for a lock whose holder does not give it back. Look at the holder's stack."
    ),
    Cause.GIL_HELD: (
        "A thread sits in native code without releasing the GIL, so no other Python thread of it runs."
    ),
    Cause.LAGGARD: (
        "The others wait in a collective that one rank has not entered. What that rank does is the "
        "question; the majority inside the collective are its victims."
    ),
    Cause.COLLECTIVE_MISMATCH: (
        "Ranks of one group wait in different collectives, or in the same one with different counts: some "
        "rank took another branch."
    ),
    Cause.MISSING_PEER: (
        "A rank that should take part was never there: not started, on a host that was not looked at, or "
        "with another master address or port."
    ),
    Cause.STOPPED_PROCESS: (
        "A process is stopped by a signal (state T) or held by a debugger (t). `kill -CONT PID` lets it run "
        "on."
    ),
    Cause.DEAD_PROCESS: (
        "A process that others wait for has died or is a zombie. Its exit status, the end of its log and "
        "the kernel's log say why."
    ),
    Cause.GPU_STUCK: (
        "A rank waits for its GPU and the GPU does not finish: a kernel that never ends, or a driver error."
    ),
    Cause.ALL_IN_COLLECTIVE: (
        "All ranks are inside the same collective and none leaves: suspect the transport (NCCL, fabric, a "
        "GPU), not the program."
    ),
    Cause.SPIN: "A thread uses the CPU in a small loop that does not get anywhere.",
    Cause.IO_STUCK: "A thread waits for a file system or device and nothing arrives.",
    Cause.STALE_LOCK_FILE: (
        "A lock file exists and nobody who could remove it lives: left behind by a build that was killed. "
        "Remove it if no build runs anywhere."
    ),
    Cause.CHILD_STUCK: "A process waits for a child that makes no progress.",
    Cause.LOADING: "Weights are being read. Slow storage can take many minutes without a log line.",
    Cause.DEQUANTIZING: (
        "Weights are being converted on the CPU: no log, no GPU use, all visible threads in a futex."
    ),
    Cause.COMPILING: (
        "A kernel is being compiled (ninja, nvcc, Triton, Inductor); the other ranks wait for its lock file."
    ),
    Cause.CAPTURING_GRAPHS: "CUDA graphs are being captured, one batch size after the other.",
    Cause.ALLOCATING_KV_CACHE: "Memory for the KV cache is being allocated.",
    Cause.INITIALIZING_NCCL: "Process groups are being set up. It waits until every rank has come.",
    Cause.WARMING_UP: "The server runs its first steps before it serves.",
    Cause.IDLE: (
        "Everybody waits for work: healthy. An idle SGLang stands in a broadcast, an idle vLLM in "
        "acquire_read."
    ),
    Cause.SERVING: "Requests are being worked on: healthy.",
    Cause.IMPORTING: "Python modules are being imported; on cold or remote disks that takes minutes.",
}
