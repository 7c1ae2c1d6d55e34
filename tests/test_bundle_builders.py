"""The functions that make the model of JSON: they take what cattrs takes, refuse what it refuses, and make the same."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import io
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangdoctor import bundle
from hangdoctor.bundle import container
from hangdoctor.bundle.builders import Tables, builder
from hangdoctor.bundle.codec import Malformed, decode_head, decode_snapshot, encode_snapshot
from hangdoctor.bundle.converters import complaint_of_head, complaint_of_snapshot
from hangdoctor.model import Capture, Process, Snapshot, Syscall, Thread
from tests.bundle_samples import filled, sample

ROOT = Path(__file__).resolve().parent.parent
RECORD = encode_snapshot(filled().snapshots[0])
HEAD = {"tool": {"version": "1"}, "target": {"asked": "pid 7", "pid": 7}, "hosts": [{"name": "a"}]}


def packed(capture: Capture) -> bytes:
    stream = io.BytesIO()
    bundle.write(capture, stream)
    return stream.getvalue()


def places(value, path=()):
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def with_value(record, place, value):
    changed = copy.deepcopy(record)
    owner = changed
    for step in place[:-1]:
        owner = owner[step]
    owner[place[-1]] = value
    return changed


VALUES = st.one_of(
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.sampled_from(["0x1f", "", "x", "0x" + "1" * 41, "py-spy", "telepathy"]),
    st.sampled_from([[], {}, [1], ["a"], [True], [[]], [{}], {"a": "b"}, {"a": 1}, [1.5], ["0x1", 2]]),
)


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(list(places(RECORD))), VALUES)
def test_a_snapshot_is_refused_when_cattrs_refuses_it(place, value):
    record = with_value(RECORD, place, value)
    try:
        decode_snapshot(copy.deepcopy(record))
        is_refused = False
    except Malformed:
        is_refused = True
    assert is_refused == (complaint_of_snapshot(record) != "is inconsistent")


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(places(HEAD))), VALUES)
def test_a_manifest_is_refused_when_cattrs_refuses_it(place, value):
    record = with_value(HEAD, place, value)
    try:
        decode_head(record)
        is_refused = False
    except Malformed:
        is_refused = True
    assert is_refused == (complaint_of_head({**record, "snapshots": []}) != "is inconsistent")


@pytest.mark.parametrize("place", list(places(RECORD)))
def test_what_is_absent_is_missed_where_cattrs_misses_it(place):
    record = copy.deepcopy(RECORD)
    owner = record
    for step in place[:-1]:
        owner = owner[step]
    del owner[place[-1]]
    try:
        decode_snapshot(copy.deepcopy(record))
        is_refused = False
    except Malformed:
        is_refused = True
    assert is_refused == (complaint_of_snapshot(record) != "is inconsistent")


def objects_in(value):
    if dataclasses.is_dataclass(value):
        yield value
        for field in dataclasses.fields(value):
            yield from objects_in(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from objects_in(item)


def test_what_is_built_is_no_different_from_what_is_constructed():
    """The class is changed after the fields were set: equality, hash, copies and frozenness must not notice."""
    read, made = bundle.read(io.BytesIO(packed(filled()))), filled()
    pairs = list(zip(objects_in(read), objects_in(made), strict=True))
    assert len({type(one) for one, _ in pairs}) >= 20
    for one, other in pairs:
        assert type(one) is type(other) and one == other and repr(one) == repr(other)
        assert dataclasses.replace(one) == other == pickle.loads(pickle.dumps(one))
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, dataclasses.fields(one)[0].name, None)
    stacks = [one for one, _ in pairs if type(one).__name__ in ("Stack", "Frame", "Syscall")]
    assert stacks and all(hash(one) == hash(dataclasses.replace(one)) for one in stacks)


def test_defaults_that_can_be_changed_are_not_shared():
    one, other = (builder(Process)({"pid": 1}, Tables()) for _ in "ab")
    assert one == other == Process(1)
    assert one.versions is not other.versions


def thread(tid: int, call: Syscall) -> Thread:
    return Thread(tid, comm=f"worker-{tid}", syscall=call, kernel_stack=("futex_wait", "do_syscall_64"))


def test_what_a_second_look_repeats_is_kept_once():
    looks = tuple(
        Snapshot(at, (Process(7, threads=(thread(7, Syscall("futex", (1, number))),)),))
        for number, at in enumerate((1.0, 2.0))
    )
    read = bundle.read(io.BytesIO(packed(dataclasses.replace(sample(), snapshots=looks))))
    first, second = (snapshot.processes[0].threads[0] for snapshot in read.snapshots)
    assert first.kernel_stack == ("futex_wait", "do_syscall_64") and first.kernel_stack is second.kernel_stack
    assert first.comm == "worker-7" and first.comm is second.comm
    # Twin: what differs stays apart.
    assert first.syscall.args == (1, 0) and second.syscall.args == (1, 1)


def test_what_was_read_before_lets_nothing_pass():
    """Equal for a dictionary is not equal for a bundle: true is no 1, and a number no text."""
    tables = Tables()
    build = builder(Thread)
    build({"tid": 1, "kernel_stack": ["1"], "syscall": {"name": "x", "args": ["0x1"], "fds": [1]}}, tables)
    for wrong in ([1], [True], "1", [["1"]], {"1": 1}):
        with pytest.raises(TypeError):
            build({"tid": 1, "kernel_stack": wrong}, tables)
        with pytest.raises(TypeError):
            build({"tid": 1, "syscall": {"name": "x", "args": wrong}}, tables)
    with pytest.raises(TypeError):
        build({"tid": 1, "syscall": {"name": "x", "fds": [True]}}, tables)


_IMPORTED = "import sys; from hangdoctor import bundle; bundle.read('-'); print('cattrs' in sys.modules)"


@pytest.mark.parametrize("is_damaged", [False, True])
def test_cattrs_is_imported_only_to_say_what_is_wrong(is_damaged):
    data = packed(sample())
    if is_damaged:
        records = [json.loads(line) for line in gzip.decompress(data).splitlines()]
        records[1]["snapshot"]["processes"][0]["pid"] = "x"
        data = b"".join(map(container.pack, records))
    said = subprocess.run(
        [sys.executable, "-c", _IMPORTED], input=data, stdout=subprocess.PIPE, cwd=ROOT, check=True
    )
    assert said.stdout.decode().strip() == str(is_damaged)


@pytest.mark.parametrize("before", ["", " ", "[7,", "-"])
@pytest.mark.parametrize("digits", [40, 41, 42, 83])
def test_numbers_end_at_forty_digits_wherever_they_stand(before, digits):
    text = '{"a":' + before + "9" * digits + ("]" if "[" in before else "") + "}"
    if digits > 40:
        with pytest.raises(ValueError, match="absurd"):
            container.parse(text.encode())
    else:
        assert "9" * 40 in str(container.parse(text.encode())["a"])


def test_a_text_of_many_digits_is_no_number():
    assert container.parse(b'{"a":"' + b"7" * 5000 + b'"}') == {"a": "7" * 5000}


def test_bundles_of_one_job_share_their_stacks_when_asked_to():
    data = packed(sample())
    shared = bundle.Shared()
    one, other = (bundle.read(io.BytesIO(data), shared=shared) for _ in "ab")
    apart = bundle.read(io.BytesIO(data))
    first, second, third = (read.snapshots[0].processes[0].threads[0].stack for read in (one, other, apart))
    assert one == other == apart
    assert first is second and first.frames[0] is second.frames[0]
    assert first is not third  # twin: nobody asked
    looks = [snapshot.processes[0].threads[0].stack for snapshot in apart.snapshots]
    assert looks[0] is looks[1]
