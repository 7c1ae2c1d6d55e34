"""The bundle: what goes in comes out, on disk at every moment, and read by every later version."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings

from hangdoctor import bundle, errors
from hangdoctor.bundle import container, version
from hangdoctor.model import Capture, Frame, Gap, Host, Method, Snapshot, Stack, Thread
from tests.bundle_samples import captures, filled, realistic, sample

RELEASED = Path(__file__).parent / "bundles" / "format-1.0" / "capture.hang"


def packed(capture: Capture) -> bytes:
    stream = io.BytesIO()
    bundle.write(capture, stream)
    return stream.getvalue()


def unpacked(data: bytes) -> Capture:
    return bundle.read(io.BytesIO(data))


def records(data: bytes) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress(data).splitlines()]


def repacked(records: list[dict]) -> bytes:
    return b"".join(container.pack(record) for record in records)


# ---- what goes in comes out


@settings(max_examples=150, deadline=None)
@given(captures())
def test_any_capture_survives(capture):
    assert unpacked(packed(capture)) == capture


def test_every_field_survives():
    capture = filled()
    assert unpacked(packed(capture)) == capture
    assert unpacked(packed(sample())) == sample()


def test_equal_captures_give_equal_bytes():
    assert packed(sample()) == packed(sample())


def test_infinity_is_not_a_measurement():
    odd = Capture(
        sample().tool,
        sample().target,
        (),
        (Snapshot(float("nan"), (), duration_s=float("inf")),),
    )
    read = unpacked(packed(odd))
    assert (read.snapshots[0].taken_at, read.snapshots[0].duration_s) == (None, None)


def test_anyone_can_look_inside_without_hangdoctor():
    lines = records(packed(sample()))
    assert [line["hangdoctor"] for line in lines] == ["manifest", "snapshot", "snapshot", "manifest"]
    assert lines[0]["format"] == {"major": 1, "minor": 0}
    thread = lines[1]["snapshot"]["processes"][0]["threads"][0]
    frames = [lines[1]["frames"][index] for index in lines[1]["stacks"][thread["stack"]]["frames"]]
    assert frames[0]["function"] == "Event.wait"
    # 64-bit values as strings, or jq and JavaScript would round them
    assert thread["syscall"]["args"][0] == "0x7f10aadfdb00"
    assert thread["lock"]["address"] == "0xfffff00000001000"


def test_repeated_stacks_cost_next_to_nothing():
    few = packed(realistic(threads=61))
    many = packed(realistic(threads=61 * 4))
    per_thread = (len(many) - len(few)) / (8 * 3 * 61 * 3)
    assert per_thread < 60, "bytes for a thread whose stack is already in the table"
    assert len(packed(realistic())) < 1_000_000


def test_a_hundred_thousand_different_frames_are_read_quickly():
    data = packed(realistic(distinct=True))
    unpacked(packed(sample()))  # builds the converters
    started = time.process_time()
    read = unpacked(data)
    took = time.process_time() - started
    frames = {
        frame
        for snapshot in read.snapshots
        for process in snapshot.processes
        for thread in process.threads
        for frame in thread.stack.frames
    }
    assert len(frames) == 3 * 8 * 200 * 21
    assert took < 3.0, "0.6 s on a quiet machine; resolving type hints for each object took 22 s"


# ---- on disk


def test_the_file_is_complete_after_every_snapshot(tmp_path):
    capture, path = sample(), tmp_path / "x.hang"
    writer = bundle.BundleWriter(path, tool=capture.tool, target=capture.target, origin=capture.origin)
    assert not path.exists()
    for count, snapshot in enumerate(capture.snapshots, start=1):
        writer.add(snapshot)
        read = bundle.read(path)
        assert read.snapshots == capture.snapshots[:count]
        assert read.gaps == ()
    writer.close(hosts=capture.hosts, gaps=capture.gaps)
    assert bundle.read(path) == capture
    assert os.listdir(tmp_path) == ["x.hang"], "no temporary file may stay behind"


def test_an_interrupted_capture_keeps_what_it_has(tmp_path):
    capture, path = sample(), tmp_path / "x.hang"
    writer = bundle.BundleWriter(path, tool=capture.tool, target=capture.target)
    with pytest.raises(KeyboardInterrupt), writer:
        writer.add(capture.snapshots[0])
        raise KeyboardInterrupt
    assert bundle.read(path).snapshots == capture.snapshots[:1]


def test_nothing_captured_leaves_no_file(tmp_path):
    capture, path = sample(), tmp_path / "x.hang"
    writer = bundle.BundleWriter(path, tool=capture.tool, target=capture.target)
    with pytest.raises(KeyboardInterrupt), writer:
        raise KeyboardInterrupt
    assert not path.exists()


def test_only_the_owner_may_read_it(tmp_path):
    path = tmp_path / "x.hang"
    path.write_text("an older file, readable by all")
    path.chmod(0o644)
    bundle.write(sample(), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_file_and_says_why(tmp_path, monkeypatch):
    path = tmp_path / "x.hang"
    bundle.write(sample(), path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.HangdoctorError) as caught:
        bundle.write(realistic(2, 3, 1), path)
    assert "No space left on device" in caught.value.message
    assert caught.value.hint
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.hang"]


@pytest.mark.parametrize("place", ["missing/x.hang", "file/x.hang", "nul\0.hang"])
def test_a_place_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.HangdoctorError) as caught:
        bundle.write(sample(), tmp_path / place)
    assert "--bundle" in caught.value.hint


def test_a_pipe_or_device_is_written_in_place_and_not_replaced(tmp_path):
    fifo, received = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
    reader.start()
    bundle.write(sample(), fifo)
    reader.join(timeout=30)
    assert unpacked(received[0]) == sample()
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_standard_output_and_input():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.bundle_samples import sample\n"
        "from hangdoctor import bundle\n"
    )
    here = str(Path(__file__).parent.parent)
    write = [sys.executable, "-c", code + "bundle.write(sample(), '-')", here]
    read = [sys.executable, "-c", code + "assert bundle.read('-') == sample(); print('same')", here]
    written = subprocess.run(write, stdout=subprocess.PIPE, check=True).stdout
    assert subprocess.run(read, input=written, stdout=subprocess.PIPE, check=True).stdout == b"same\n"


def test_a_stream_gets_each_snapshot_at_once():
    capture, stream = sample(), io.BytesIO()
    writer = bundle.BundleWriter(stream, tool=capture.tool, target=capture.target, hosts=capture.hosts)
    writer.add(capture.snapshots[0])
    so_far = unpacked(stream.getvalue())  # the connection broke here
    assert so_far.snapshots == capture.snapshots[:1]
    assert "ends early" in so_far.gaps[0].reason
    writer.add(capture.snapshots[1])
    writer.close()
    assert unpacked(stream.getvalue()) == dataclasses.replace(capture, gaps=(), origin="live")


def test_a_reader_that_hangs_up_is_an_error_and_not_a_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    with (
        open(writing, "wb", buffering=0) as stream,
        pytest.raises(errors.HangdoctorError, match="Broken pipe"),
    ):
        bundle.write(sample(), stream)


def test_the_name_says_which_process_and_when():
    assert bundle.bundle_name(4711, 1764439421.9) == "hangdoctor-4711-20251129T180341Z.hang"
    assert bundle.bundle_name(None, 0.0) == "hangdoctor-unknown-19700101T000000Z.hang"


# ---- versions


def test_the_released_format_is_still_read():
    assert bundle.read(RELEASED) == sample()


def test_a_newer_minor_version_is_read_as_far_as_it_is_known():
    lines = records(packed(sample()))
    for line in lines:
        line["format"] = {"major": 1, "minor": 7, "patch": "x"}
        line["later"] = [{"a": 1}]
    lines[1]["snapshot"]["processes"][0]["quantum_state"] = {"spin": "up"}
    lines[1]["stacks"][0]["method"] = "telepathy"
    lines[1]["frames"][0]["column"] = 17
    lines.insert(2, {"hangdoctor": "hologram", "data": [1, 2, 3]})
    read = unpacked(repacked(lines))
    assert read.gaps == sample().gaps
    assert read.snapshots[1] == sample().snapshots[1]
    thread = read.snapshots[0].processes[0].threads[0]
    assert thread.stack.method is Method.OTHER
    assert thread.stack.frames == sample().snapshots[0].processes[0].threads[0].stack.frames


def test_a_newer_major_version_names_the_release_to_install():
    lines = records(packed(sample()))
    for line in (lines[0], lines[-1]):
        line["format"] = {"major": 2, "minor": 1}
        line["tool"]["version"] = "3.4.0"
    with pytest.raises(errors.UnreadableInput) as caught:
        unpacked(repacked(lines))
    assert "format 2.1" in caught.value.message
    assert "'hangdoctor>=3.4.0'" in caught.value.hint


def test_an_older_major_version_goes_through_the_migrations(monkeypatch):
    lines = records(packed(sample()))
    for line in lines:
        if line["hangdoctor"] == "manifest":
            line["format"] = {"major": 0, "minor": 3}
            line["goal"] = line.pop("target")
        else:
            line["look"] = line.pop("snapshot")

    def from_0(record):
        renamed = {"goal": "target", "look": "snapshot"}
        return {renamed.get(key, key): value for key, value in record.items()}

    monkeypatch.setattr(version, "MIGRATIONS", {0: from_0})
    assert unpacked(repacked(lines)) == sample()


def test_a_major_version_that_never_was_is_refused():
    lines = records(packed(sample()))
    lines[0]["format"] = {"major": 0, "minor": 1}
    with pytest.raises(errors.UnreadableInput, match="never released"):
        unpacked(repacked(lines))


def test_absent_and_null_mean_not_known():
    lines = records(packed(sample()))
    _null_everything_optional(lines[1]["snapshot"])
    read = unpacked(repacked(lines))
    assert read.gaps == sample().gaps
    process = read.snapshots[0].processes[0]
    assert (process.state, process.command, process.versions) == (None, (), {})
    assert process.threads == (Thread(tid=None), Thread(tid=None))
    assert read.snapshots[0].taken_at is None


def _null_everything_optional(value):
    keep = {"processes", "pid", "threads"}
    for key, item in value.items():
        if key not in keep:
            value[key] = None
        elif isinstance(item, list):
            for element in item:
                _null_everything_optional(element)


def test_a_bundle_is_told_from_another_gzip_file():
    assert bundle.looks_like_bundle(packed(sample())[:100])
    assert not bundle.looks_like_bundle(gzip.compress(b'{"procs": []}'))
    assert not bundle.looks_like_bundle(b"PK\x03\x04")
    assert not bundle.looks_like_bundle(b"\x1f\x8b\x08")


def test_the_writer_takes_hosts_at_either_end():
    capture, stream = sample(), io.BytesIO()
    writer = bundle.BundleWriter(stream, tool=capture.tool, target=capture.target, hosts=[Host("early")])
    writer.add(Snapshot(None, ()))
    writer.close(gaps=[Gap("proc", "pid 1", "vanished")])
    read = unpacked(stream.getvalue())
    assert [host.name for host in read.hosts] == ["early"]
    assert read.gaps == (Gap("proc", "pid 1", "vanished"),)


def test_stacks_are_shared_again_after_reading():
    stack = Stack((Frame("f", "f.py"),), Method.TRACEBACK)
    threads = tuple(Thread(tid=tid, stack=stack) for tid in range(5))
    process = dataclasses.replace(sample().snapshots[0].processes[0], threads=threads)
    capture = dataclasses.replace(sample(), snapshots=(Snapshot(None, (process,)),))
    read = unpacked(packed(capture)).snapshots[0].processes[0].threads
    assert len({id(thread.stack) for thread in read}) == 1
