"""A rank that compiles while the others wait for its lock file, and what goes wrong with that.

``d_compile.py WAY [RANKS]``
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import d_world

C_KERNEL = """
void kernel_{n}(const unsigned char *packed, float *out, const float *scale, size_t size) {{
    for (size_t k = 0; k < size; k++) {{
        float low = (packed[k] & 15) - 8, high = (packed[k] >> 4) - 8 + {n};
        switch (k % 7) {{
        case 0: out[2 * k] = low * scale[k / 32]; break;
        case 1: out[2 * k] = low + high * scale[k / 64]; break;
        default: out[2 * k] = high;
        }}
        out[2 * k + 1] = high * scale[k / 32 + 1];
    }}
}}
"""


def write_source(folder, number, functions, suffix="c"):
    source = folder / f"kernel_{number}.{suffix}"
    source.write_text("#include <stddef.h>\n" + "".join(C_KERNEL.format(n=n) for n in range(functions)))
    return source


def compile_command(source):
    return ["gcc", "-O3", "-c", str(source), "-o", str(source.with_suffix(".o"))]


def take_lock_file(folder):
    """The kind of lock that torch's FileBaton and ninja caches use: the file's existence."""
    os.close(os.open(folder / "lock", os.O_CREAT | os.O_EXCL))


def wait_for_lock_file(folder):
    while not (folder / "begun").exists():
        time.sleep(0.01)
    d_world.placed()
    while (folder / "lock").exists():
        time.sleep(0.1)


def wait_for_flock(folder):
    while not (folder / "begun").exists():
        time.sleep(0.01)
    with (folder / "lock").open("r") as lock:
        d_world.placed()
        fcntl.flock(lock, fcntl.LOCK_EX)


def compile_one(folder):
    """One translation unit that takes the compiler minutes; a real flock(2)."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "begun").touch()
        with subprocess.Popen(compile_command(write_source(folder, 0, 30_000))):
            d_world.placed()


def compile_many(folder):
    """Unit after unit, some seconds each."""
    take_lock_file(folder)
    (folder / "begun").touch()
    for number in range(300):
        with subprocess.Popen(compile_command(write_source(folder, number, 200))):
            if number == 0:
                d_world.placed()
    (folder / "lock").unlink()


def find_compiler(driver):
    """The process that does the work, cc1, below the driver; waits until it has been executed."""
    while True:
        for child in Path(f"/proc/{driver}/task/{driver}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text().strip() == "cc1":
                return int(child)
        time.sleep(0.005)


def compile_stopped(folder):
    """The compiler proper is stopped."""
    take_lock_file(folder)
    (folder / "begun").touch()
    with subprocess.Popen(compile_command(write_source(folder, 0, 30_000))) as driver:
        compiler = find_compiler(driver.pid)
        os.kill(compiler, signal.SIGSTOP)
        while Path(f"/proc/{compiler}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.005)
        d_world.placed()


def leave_lock_file(folder):
    """A builder that died long ago left its lock file."""
    builder = os.fork()
    if builder == 0:
        take_lock_file(folder)
        os._exit(1)
    os.waitpid(builder, 0)
    os.utime(folder / "lock", (time.time() - 7200, time.time() - 7200))
    (folder / "begun").touch()


def load_file_baton():
    """The lock file of torch.utils.cpp_extension; its module alone, because torch takes seconds to import."""
    place = Path(find_spec("torch").origin).with_name("utils") / "file_baton.py"
    spec = spec_from_file_location("file_baton", place)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FileBaton


def wait_for_baton(folder):
    d_world.placed()
    FileBaton(str(folder / "lock")).wait()


def write_build(folder, units, functions):
    """What torch.utils.cpp_extension.load writes: a build.ninja, here with one compiler at a time."""
    rules = ["rule compile\n  command = g++ -O2 -std=c++17 -fPIC -c $in -o $out\n"]
    for number in range(units):
        source = write_source(folder, number, functions, "cpp")
        rules.append(f"build {source.with_suffix('.o')}: compile {source}\n")
    (folder / "build.ninja").write_text("".join(rules))


def build_with_ninja(folder):
    baton = FileBaton(str(folder / "lock"))
    assert baton.try_acquire()
    (folder / "begun").touch()
    write_build(folder, 60, 150)
    ninja = shutil.which("ninja", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with subprocess.Popen([ninja, "-j1", "-v"], cwd=folder, stdout=subprocess.DEVNULL) as build:
        while not Path(f"/proc/{build.pid}/task/{build.pid}/children").read_text():
            time.sleep(0.005)
        d_world.placed()
    baton.release()


def wait_for_build(folder):
    while not (folder / "begun").exists():
        time.sleep(0.01)
    wait_for_baton(folder)


WAYS = {
    "one": (compile_one, wait_for_flock, None),
    "many": (compile_many, wait_for_lock_file, None),
    "stopped-compiler": (compile_stopped, wait_for_lock_file, None),
    "ninja": (build_with_ninja, wait_for_build, None),
    "stale-lock": (wait_for_lock_file, wait_for_lock_file, leave_lock_file),
    "stale-baton": (wait_for_baton, wait_for_baton, leave_lock_file),
}

if sys.argv[1] in ("stale-baton", "ninja"):
    FileBaton = load_file_baton()
fault, others, prepare = WAYS[sys.argv[1]]
world_size = int(sys.argv[2]) if len(sys.argv) > 2 else d_world.WORLD_SIZE
d_world.run(fault, others=others, prepare=prepare, world_size=world_size)
