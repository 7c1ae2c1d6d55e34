"""Bundles that are damaged, cut off or hostile: an error a person understands, or what could be saved."""

from __future__ import annotations

import copy
import gzip
import io
import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangdoctor import bundle
from hangdoctor.bundle import container
from hangdoctor.bundle.container import Limits
from hangdoctor.errors import HangdoctorError, UnreadableInput
from hangdoctor.model import Capture
from tests.bundle_samples import sample


def packed(capture: Capture) -> bytes:
    stream = io.BytesIO()
    bundle.write(capture, stream)
    return stream.getvalue()


def unpacked(data: bytes, **limits: int) -> Capture:
    return bundle.read(io.BytesIO(data), limits=Limits(**limits))


def raw_member(text: str | bytes) -> bytes:
    squeezer = zlib.compressobj(level=9, wbits=31)
    return squeezer.compress(text.encode() if isinstance(text, str) else text) + squeezer.flush()


GOOD = packed(sample())
RECORDS = [json.loads(line) for line in gzip.decompress(GOOD).splitlines()]
MEMBERS = [container.pack(record) for record in RECORDS]


def test_the_parts_are_what_the_tests_believe():
    assert b"".join(MEMBERS) == GOOD


# ---- cut off


def test_cut_off_anywhere_gives_the_snapshots_before_it_or_an_error():
    first_end = len(MEMBERS[0]) + len(MEMBERS[1])
    second_end = first_end + len(MEMBERS[2])
    for length in range(len(GOOD)):
        intact = (length >= first_end) + (length >= second_end)
        if not intact:
            with pytest.raises(UnreadableInput):
                unpacked(GOOD[:length])
            continue
        read = unpacked(GOOD[:length])
        assert read.snapshots == sample().snapshots[:intact]
        assert (read.target, read.hosts) == (sample().target, sample().hosts)
        assert any("ends early" in gap.reason and gap.remedy for gap in read.gaps)


def test_bytes_behind_the_end_are_mentioned_and_ignored():
    read = unpacked(GOOD + b"\0" * 17)
    assert read.snapshots == sample().snapshots
    lost = f"bytes {len(GOOD)} to {len(GOOD) + 17} are lost"
    assert [lost in gap.reason for gap in read.gaps if gap.source == "bundle"] == [True]


# ---- damaged


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(GOOD) * 8 - 1), st.integers(0, len(GOOD) * 8 - 1))
def test_flipped_bits_lose_their_record_and_no_other(first, second):
    damaged = bytearray(GOOD)
    for bit in {first, second}:
        damaged[bit // 8] ^= 1 << bit % 8
    try:
        read = unpacked(bytes(damaged))
    except HangdoctorError:
        return
    assert all(snapshot in sample().snapshots for snapshot in read.snapshots)
    if read.snapshots != sample().snapshots:
        assert any(gap.source == "bundle" for gap in read.gaps)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_damaged_snapshot_leaves_the_other(lost):
    members = list(MEMBERS)
    middle = len(members[lost]) // 2
    members[lost] = (
        members[lost][:middle] + bytes([members[lost][middle] ^ 0x55]) + members[lost][middle + 1 :]
    )
    read = unpacked(b"".join(members))
    assert read.snapshots == (sample().snapshots[2 - lost],)
    reasons = [gap.reason for gap in read.gaps]
    assert any("1 of 2 snapshots are lost" in reason for reason in reasons)
    start = sum(map(len, members[:lost]))
    assert any(f"bytes {start} to {start + len(members[lost])} are lost" in reason for reason in reasons)


def test_either_manifest_will_do():
    garbage = b"\x1f\x8b\x08" + bytes(40)
    first_lost = unpacked(garbage + b"".join(MEMBERS[1:]))
    assert first_lost.snapshots == sample().snapshots
    assert first_lost.target == sample().target
    last_lost = unpacked(b"".join(MEMBERS[:3]) + garbage)
    assert last_lost.snapshots == sample().snapshots
    assert last_lost.target == sample().target


def test_snapshots_without_any_manifest_are_kept_and_it_is_said():
    read = unpacked(b"".join(MEMBERS[1:3]))
    assert read.snapshots == sample().snapshots
    assert any("host, target and tool are not known" in gap.reason for gap in read.gaps)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", container.GZIP_MAGIC, GOOD[:40], MEMBERS[0]]))
def test_any_bytes_at_all(tail, head):
    with pytest.raises(UnreadableInput) as caught:
        unpacked(head + tail)
    assert caught.value.hint


# ---- wrong types


def _places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _places(item, (*path, index))


_PLACES = [(number, path) for number in (0, 1, 3) for path in _places(RECORDS[number]) if path]
_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=4),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(_PLACES), _JSON)
def test_no_value_in_any_place_is_more_than_an_unreadable_record(place, value):
    number, path = place
    records = copy.deepcopy(RECORDS)
    owner = records[number]
    for step in path[:-1]:
        owner = owner[step]
    owner[path[-1]] = value
    try:
        read = unpacked(b"".join(map(container.pack, records)))
    except UnreadableInput:
        return
    assert isinstance(read, Capture)
    hash(read.snapshots[0].taken_at)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("snapshot", "processes", 0, "pid"), "4711", "pid"),
        (("snapshot", "processes", 0, "pid"), True, "pid"),
        (("snapshot", "processes", 0, "pid"), 4711.0, "pid"),
        (("snapshot", "processes", 0, "command"), "one string", "command"),
        (("snapshot", "processes", 0, "environ"), ["A=1"], "environ"),
        (("snapshot", "processes", 0, "environ", "A"), 1, "environ"),
        (("snapshot", "processes", 0, "threads", 0, "owns_gil"), 1, "owns_gil"),
        (("snapshot", "processes", 0, "threads", 0, "last_ran_s"), "now", "last_ran_s"),
        (("snapshot", "processes", 0, "threads", 0, "stack"), 99, "stack 99"),
        (("snapshot", "processes", 0, "threads", 0, "stack"), -1, "stack -1"),
        (("snapshot", "processes", 0, "threads", 0, "stack"), {"frames": []}, "stack"),
        (("snapshot", "processes", 0, "threads", 0, "lock", "address"), 17, "address"),
        (("snapshot", "processes", 0, "threads", 0, "lock", "address"), "0x", "address"),
        (("snapshot", "processes", 0), 17, "processes"),
        (("stacks", 0, "frames", 0), 2, "frame 2"),
        (("frames", 0, "function"), None, "function"),
        (("snapshot",), [], "holds no snapshot"),
    ],
)
def test_a_wrong_type_says_where(path, value, complaint):
    record = copy.deepcopy(RECORDS[1])
    owner = record
    for step in path[:-1]:
        owner = owner[step]
    owner[path[-1]] = value
    read = unpacked(MEMBERS[0] + container.pack(record) + MEMBERS[2] + MEMBERS[3])
    assert read.snapshots == sample().snapshots[1:]
    assert any(complaint in gap.reason for gap in read.gaps), [gap.reason for gap in read.gaps]


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", '"x"', "{", '{"hangdoctor": 3}', '{"a": NaN}', '{"a": 1e999}', "\x00", "{}" * 2],
)
def test_a_record_that_is_none_is_a_gap(text):
    read = unpacked(MEMBERS[0] + raw_member(text) + b"".join(MEMBERS[1:]))
    assert read.snapshots == sample().snapshots
    if text != '{"a": 1e999}':  # an unknown kind of record is not looked into
        assert any(gap.source == "bundle" for gap in read.gaps)


def test_a_foreign_gzip_file_is_called_so():
    with pytest.raises(UnreadableInput, match="is no hangdoctor bundle"):
        unpacked(gzip.compress(b'{"procs": []}'))
    with pytest.raises(UnreadableInput, match="is no hangdoctor bundle"):
        unpacked(b"Process 4711: python\n")
    with pytest.raises(UnreadableInput, match="is empty"):
        unpacked(b"")


def test_a_missing_file_and_a_directory_are_said_plainly(tmp_path):
    with pytest.raises(UnreadableInput, match="No such file"):
        bundle.read(tmp_path / "none.hang")
    with pytest.raises(UnreadableInput, match="Is a directory"):
        bundle.read(tmp_path)


# ---- hostile


def test_a_record_that_grows_without_end_is_refused():
    bomb = raw_member(b" " * 1_000_000)
    assert len(bomb) < 2000
    with pytest.raises(UnreadableInput, match="refused"):
        unpacked(MEMBERS[0] + bomb, record_bytes=500_000)


def test_many_records_that_grow_together_are_refused():
    with pytest.raises(UnreadableInput, match="refused"):
        unpacked(MEMBERS[0] + raw_member(b" " * 100_000) * 9, total_bytes=500_000)


def test_what_a_broken_record_gave_counts_too():
    broken = raw_member(b" " * 100_000)[:-8]
    with pytest.raises(UnreadableInput, match="refused"):
        unpacked(MEMBERS[0] + broken * 9, total_bytes=500_000)


def test_too_many_records_are_refused():
    with pytest.raises(UnreadableInput, match="more than 50 records"):
        unpacked(MEMBERS[0] + raw_member("{}") * 60, records=50)
    with pytest.raises(UnreadableInput, match="more than 50 records"):
        unpacked(container.GZIP_MAGIC * 60, records=50)


def test_too_many_values_are_refused_before_they_are_parsed():
    with pytest.raises(UnreadableInput, match="more than 1000 values"):
        unpacked(raw_member('{"a":[' + "[]," * 999 + "[]]}"), total_values=1000)


def test_deep_nesting_and_endless_digits_are_refused():
    for text in ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", '{"a":' + "9" * 100_000 + "}"):
        read = unpacked(MEMBERS[0] + raw_member(text) + b"".join(MEMBERS[1:]))
        assert read.snapshots == sample().snapshots
        assert any("nested" in gap.reason or "absurd" in gap.reason for gap in read.gaps)


def test_a_stream_without_end_is_not_read_to_the_end():
    class Endless(io.RawIOBase):
        given = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            self.given += len(buffer)
            return len(buffer)

    endless = Endless()
    with pytest.raises(UnreadableInput, match="larger than"):
        bundle.read(io.BufferedReader(endless), limits=Limits(file_bytes=100_000))
    assert endless.given < 1_000_000
