"""A rank that computes, or only seems to: ``d_compute.py WAY``. The other two ranks wait for it in a barrier."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import d_world

C_SOURCE = """
#include <stddef.h>
void unpack(const unsigned char *packed, float *out, size_t size, int rounds) {
    for (int r = 0; r < rounds; r++)
        for (size_t k = 0; k < size; k++) {
            out[2 * k] = ((packed[k] & 15) - 8) * 0.1f + r;
            out[2 * k + 1] = ((packed[k] >> 4) - 8) * 0.1f - r;
        }
}
"""


def unpack_int4(packed):
    values = []
    for byte in packed:
        values.append((byte & 15) - 8)
        values.append((byte >> 4) - 8)
    return values


def apply_scales(values):
    return [value * (1 + (index >> 5)) for index, value in enumerate(values)]


def dequantize_python(_folder):
    packed = os.urandom(1 << 18)
    d_world.placed()
    while True:
        apply_scales(unpack_int4(packed))


def dequantize_numpy(_folder):
    import numpy

    packed = numpy.frombuffer(os.urandom(1 << 20), dtype=numpy.uint8)
    scales = numpy.linspace(0.1, 1.0, 1 << 16, dtype=numpy.float32)[:, None]

    def unpack_groups():
        return numpy.stack((packed & 15, packed >> 4), axis=-1).reshape(-1, 32).astype(numpy.float32) - 8

    def scale_groups(values):
        return values * scales

    d_world.placed()
    while True:
        scale_groups(unpack_groups()).sum()


def dequantize_numpy_gil_held(_folder):
    """An array of Python objects: every element is handled by the interpreter."""
    import numpy

    packed = numpy.frombuffer(os.urandom(1 << 16), dtype=numpy.uint8).astype(object)
    scales = numpy.linspace(0.1, 1.0, 1 << 12).astype(object)[:, None]

    def unpack_groups():
        return numpy.stack((packed & 15, packed >> 4), axis=-1).reshape(-1, 32) - 8

    def scale_groups(values):
        return values * scales

    d_world.placed()
    while True:
        scale_groups(unpack_groups()).sum()


def dequantize_torch_gil_held(_folder):
    """Group by group in Python: the tensors are too small for the GIL ever to be given up for long."""
    import torch

    torch.set_num_threads(1)
    packed = torch.randint(0, 255, (1 << 16,), dtype=torch.uint8)
    scales = torch.rand(1 << 12)

    def unpack_group(group):
        return torch.cat((group & 15, group >> 4)) - 8

    def scale_group(values, scale):
        return values.float() * scale

    d_world.placed()
    while True:
        for group, scale in zip(packed.split(16), scales, strict=True):
            scale_group(unpack_group(group), scale)


def dequantize_torch(_folder):
    """Tensor operations release the GIL."""
    import torch

    torch.set_num_threads(1)
    packed = torch.randint(0, 255, (1 << 20,), dtype=torch.uint8)
    scales = torch.rand(1 << 16, 1)

    def unpack_groups():
        return (torch.stack((packed & 15, packed >> 4), dim=-1).view(-1, 32) - 8).float()

    def scale_groups(values):
        return values * scales

    d_world.placed()
    while True:
        scale_groups(unpack_groups()).sum()


def build_c(folder):
    source = folder / "unpack.c"
    source.write_text(C_SOURCE)
    library = folder / "unpack.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return library


def dequantize_c(folder, loader):
    """Each call into C takes some tenths of a second; layers of several kinds are called in turn."""
    library = loader(str(build_c(folder)))
    packed = ctypes.create_string_buffer(os.urandom(1 << 20), 1 << 20)
    out = (ctypes.c_float * (1 << 21))()

    def unpack(rounds):
        return library.unpack(packed, out, ctypes.c_size_t(1 << 20), rounds)

    def dequantize_attention():
        unpack(40)
        unpack(60)

    def dequantize_experts():
        unpack(50)
        unpack(70)

    def dequantize_head():
        unpack(30)
        unpack(40)

    d_world.placed()
    while True:
        dequantize_attention()
        dequantize_experts()
        dequantize_head()


def dequantize_c_gil_held(folder):
    dequantize_c(folder, ctypes.PyDLL)


def dequantize_c_gil_free(folder):
    dequantize_c(folder, ctypes.CDLL)


def collect_garbage(_folder):
    """Full collections of a large heap, one after the other."""
    heap = [[index] for index in range(2_000_000)]
    d_world.placed()
    while heap:
        gc.collect()


def spin_on_flag(_folder):
    """Waits for a flag that nobody sets, and burns a core."""
    flag = []
    d_world.placed()
    while not flag:
        pass


def spin_yielding(_folder):
    flag = []
    d_world.placed()
    while not flag:
        os.sched_yield()


def poll_for_dead_peer(folder):
    """Looks every 20 ms for a file that a helper process, long dead, was to write."""
    helper = os.fork()
    if helper == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitid(os.P_PID, helper, os.WEXITED | os.WNOWAIT)
    d_world.placed()
    while not (folder / "tokenizer.ready").exists():
        time.sleep(0.02)


def stuck_with_heartbeat(_folder):
    """The log grows all the time, the rank does nothing."""

    def beat():
        while True:
            print(f"{time.strftime('%H:%M:%S')} heartbeat: worker alive", flush=True)
            time.sleep(0.3)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    never = threading.Event()
    d_world.placed()
    never.wait()


def load_with_bar(_folder):
    """The only sign of life is the number in the log, in a line that is written over and over."""
    total = 50_000
    d_world.placed()
    for shard in range(1, total):
        time.sleep(0.25)
        bar = "\u2588" * (10 * shard // total)
        share = f"{100 * shard // total:3}%|{bar:10}| {shard}/{total} [00:{shard % 60:02}<3:11:40, 4.00it/s]"
        print(f"\rLoading safetensors checkpoint shards: {share}", end="", flush=True)


def stop_itself(_folder):
    """Stopped by a signal."""
    d_world.placed()
    os.kill(os.getpid(), signal.SIGSTOP)


def grow(_folder):
    """Allocates without end (well, up to 600 MB) and gets nowhere."""
    hoard = []
    d_world.placed()
    while True:
        if len(hoard) < 600:
            hoard.append(bytearray(1 << 20))
        time.sleep(0.05)


def restart_worker(_folder):
    """Starts a helper again and again that dies at once."""
    is_first = True
    while True:
        helper = os.fork()
        if helper == 0:
            os._exit(1)
        os.waitpid(helper, 0)
        if is_first:
            d_world.placed()
            is_first = False
        time.sleep(0.3)


WAYS = {
    "dequantize-python": dequantize_python,
    "dequantize-numpy": dequantize_numpy,
    "dequantize-torch": dequantize_torch,
    "dequantize-numpy-gil-held": dequantize_numpy_gil_held,
    "dequantize-torch-gil-held": dequantize_torch_gil_held,
    "dequantize-c-gil-held": dequantize_c_gil_held,
    "dequantize-c-gil-free": dequantize_c_gil_free,
    "gc": collect_garbage,
    "spin": spin_on_flag,
    "spin-yield": spin_yielding,
    "poll-dead-peer": poll_for_dead_peer,
    "heartbeat": stuck_with_heartbeat,
    "progress-bar": load_with_bar,
    "stopped": stop_itself,
    "memory-growth": grow,
    "restart-loop": restart_worker,
}

d_world.run(WAYS[sys.argv[1]])
