"""The far end of a connection: sent as text to each host and run there by whatever Python it has, then gone.

Stands alone on purpose: it imports nothing of hangdoctor, for it decides how hangdoctor gets there. What goes over
the connection is lines, because every transport (ssh, srun, kubectl, a tree of gateways) passes lines on:

    here  -> there   TOKEN sync | * parcel NAME SIZE, then its bytes | TOKEN order JSON | TOKEN start UNIXTIME
    there -> here    MARK hello JSON | MARK sync UNIXTIME | MARK ready JSON | MARK data BASE64 | MARK said TEXT
                     | MARK done CODE

A gateway gives every line to all hosts below it, so each takes what begins with the token that it has made up and said
in its hello, or with a star. Lines without the mark are somebody else's (login banners) and are told as such. When the
connection ends, for whatever reason, standard input ends: the child is ended and the private folder removed. Only
SIGKILL leaves it.
"""

import base64
import binascii
import contextlib
import io
import json
import os
import pathlib
import platform
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile

PIECE_BYTES = 48 * 1024
"""Of output per line: 64 KiB of base64, what transports read at once."""
READY = "@ready "
"""How ``hangdoctor collect --start-at -`` says that it could begin."""
END_S = 3.0
"""For a child that was told to end."""


class Ended(Exception):
    """The connection is gone or a signal came: nobody wants the answer any more."""


class Far:
    """One conversation."""

    def __init__(self, mark):  # type: (str) -> None
        self.mark = mark.encode()
        self.token = binascii.hexlify(os.urandom(8))
        self.parcels = {}  # type: dict[str, bytes]
        self.events = queue.Queue()  # type: queue.Queue[tuple[str, bytes]]
        self.lock = threading.Lock()
        self.folder = None  # type: str | None
        self.child = None  # type: subprocess.Popen[bytes] | None

    def say(self, word, payload=b""):  # type: (str, bytes) -> None
        """One line, whole, at once."""
        with self.lock:
            try:
                sys.stdout.buffer.write(self.mark + b" " + word.encode() + b" " + payload + b"\n")
                sys.stdout.buffer.flush()
            except (OSError, ValueError):
                self.events.put(("end", b""))

    def listen(self):  # type: () -> None
        """In a thread: what the near end says. Clock readings are answered here, without a detour."""
        stream = sys.stdin.buffer
        while True:
            line = stream.readline()
            to, _, text = line.strip().partition(b" ")
            word, _, rest = text.partition(b" ")
            if not line:
                self.events.put(("end", b""))
                return
            if word == b"parcel":
                name, size = rest.decode().split()
                self.parcels[name] = stream.read(int(size))
            elif to != self.token:
                continue
            elif word == b"sync":
                self.say("sync", repr(time.time()).encode())
            elif word == b"order":
                try:
                    for name in json.loads(rest.decode())["files"]:
                        self.unpack(name)
                    self.parcels.clear()
                except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
                    # A full or missing temporary folder: whoever asked must read that, not a silence.
                    self.events.put(("trouble", str(error).encode()))
                    return
                self.events.put(("order", rest))
            elif word == b"start":
                self.events.put(("start", rest))

    def unpack(self, name):  # type: (str) -> None
        """Onto the disk, because knowledge files are read by their path, and programs can only be run from one."""
        if self.folder is None:
            self.folder = tempfile.mkdtemp(prefix="hangdoctor-", dir=roomy_folder())
        with zipfile.ZipFile(io.BytesIO(self.parcels[name])) as archive:
            archive.extractall(self.folder)
        tool = pathlib.Path(self.folder, "py-spy")
        if tool.exists():
            tool.chmod(0o700)  # archives lose it

    def run(self):  # type: () -> int
        """The exit code of what was asked for."""
        self.say("hello", json.dumps(dict(describe(), token=self.token.decode())).encode())
        threading.Thread(target=self.listen, daemon=True).start()
        while True:
            kind, payload = self.events.get()
            if kind == "end":
                raise Ended
            if kind == "trouble":
                self.say("said", b"hangdoctor: nothing could be unpacked here: " + payload)
                return 5
            if kind == "order":
                return self.work(json.loads(payload.decode()))

    def work(self, order):  # type: (dict[str, object]) -> int
        """Run the program, pass on what it says, and end it when its time is over."""
        end = time.monotonic() + float(order["seconds"])  # type: ignore[arg-type]
        self.child = child = subprocess.Popen(
            self.program() + list(order["words"]),  # type: ignore[call-overload]
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(),
            start_new_session=True,
        )
        pumps = [
            threading.Thread(target=self.pump_output, args=(child,), daemon=True),
            threading.Thread(target=self.pump_errors, args=(child,), daemon=True),
        ]
        for pump in pumps:
            pump.start()
        open_pumps = len(pumps)
        while open_pumps:
            try:
                kind, payload = self.events.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self.say("said", b"hangdoctor: its time was over")
                break
            if kind == "end":
                raise Ended
            if kind == "closed":
                open_pumps -= 1
            elif kind == "start":
                with contextlib.suppress(OSError, ValueError):
                    child.stdin.write(payload + b"\n")  # type: ignore[union-attr]
                    child.stdin.close()  # type: ignore[union-attr]
        return 124 if open_pumps else child.wait()

    def pump_output(self, child):  # type: (subprocess.Popen[bytes]) -> None
        """In a thread: whole pieces, for each line costs every gateway on the way a message."""
        while True:
            piece = child.stdout.read(PIECE_BYTES)  # type: ignore[union-attr]
            if not piece:
                self.events.put(("closed", b""))
                return
            self.say("data", base64.b64encode(piece))

    def pump_errors(self, child):  # type: (subprocess.Popen[bytes]) -> None
        for line in child.stderr:  # type: ignore[union-attr]
            text = line.rstrip()
            if text.startswith(READY.encode()):
                self.say("ready", text[len(READY) :])
            else:
                self.say("said", text)
        self.events.put(("closed", b""))

    def program(self):  # type: () -> list[str]
        """What was sent goes first: it is the release that the near end speaks."""
        if self.folder is not None and os.path.isfile(os.path.join(self.folder, "__main__.py")):
            return [sys.executable, self.folder]
        return [sys.executable, "-m", "hangdoctor"]

    def environment(self):  # type: () -> dict[str, str]
        environment = dict(os.environ)
        if self.folder is not None:
            environment["PATH"] = self.folder + os.pathsep + environment.get("PATH", os.defpath)
            environment["TMPDIR"] = self.folder
        # Options of the user on this host must not change what all hosts are asked for.
        return {name: value for name, value in environment.items() if not name.startswith("HANGDOCTOR_")}

    def leave(self):  # type: () -> None
        """Whatever happened: no child, no folder."""
        child = self.child
        if child is not None and child.poll() is None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, number)
                try:
                    child.wait(END_S)
                    break
                except subprocess.TimeoutExpired:
                    continue
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def roomy_folder():  # type: () -> str | None
    """A folder for temporary files from which programs may be run; some hosts mount /tmp noexec."""
    noexec = getattr(os, "ST_NOEXEC", 0)
    for folder in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm"):
        try:
            if folder and os.access(folder, os.W_OK | os.X_OK) and not os.statvfs(folder).f_flag & noexec:
                return folder
        except OSError:
            continue
    return None


def describe():  # type: () -> dict[str, object]
    """What the near end decides by: whether hangdoctor and py-spy are here, and for which machine."""
    beside = str(pathlib.Path(sys.executable or "").with_name("py-spy")) if sys.executable else ""
    places = [beside, shutil.which("py-spy") or ""]
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "host": platform.node(),
        "uid": os.geteuid(),
        "has": installed(),
        "py_spy": any(os.access(place, os.X_OK) for place in places if place),
    }


def installed():  # type: () -> str | None
    """The release of hangdoctor that this Python would import."""
    try:
        from importlib import metadata

        return metadata.version("hangdoctor")
    except Exception:  # no metadata module before 3.8, no such package, a damaged one: all the same here
        return None


def _end(number, frame):  # type: (int, object) -> None
    raise Ended


def main(mark):  # type: (str) -> None
    """Talk until there is nothing more to say, and leave nothing behind."""
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, _end)
    far = Far(mark)
    code = None
    try:
        code = far.run()
    except Ended:
        pass
    finally:
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        far.leave()
        if code is not None:
            far.say("done", str(code).encode())  # last of all: the near end may cut the connection now
        # The thread that listens may hold the lock of standard input, on which an ordinary exit waits.
        os._exit(0)
