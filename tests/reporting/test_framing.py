from hypothesis import given
from hypothesis import strategies as st

from agent.reporting.framing import FrameKind, damaged_bytes, frame_encode, frames_read

records = st.tuples(st.sampled_from(FrameKind), st.integers(0, 2**64 - 1), st.binary(max_size=200))


def written(records):
    return b"".join(frame_encode(*record) for record in records)


def read(content):
    return [(frame.kind, frame.number, frame.body) for frame in frames_read(content)]


@given(st.lists(records, max_size=8), st.integers(0, 300))
def test_it_reads_back_what_was_written(written_records, allocated):
    content = written(written_records) + bytes(allocated)
    assert read(content) == written_records
    assert damaged_bytes(content) == 0
    assert all(content[frame.offset : frame.end] == frame.body for frame in frames_read(content))


@given(st.lists(records, min_size=1, max_size=5), st.booleans(), st.data())
def test_a_cut_loses_only_the_record_it_cuts(written_records, zeros_follow, data):
    content = written(written_records)
    cut = data.draw(st.integers(0, len(content)))
    whole = [n for n in range(len(written_records) + 1) if len(written(written_records[:n])) <= cut][-1]
    torn = content[:cut] + (bytes(len(content) - cut) if zeros_follow else b"")
    # A record that ends in zeros is whole even when its zeros were only allocated.
    assert read(torn)[:whole] == written_records[:whole]
    assert read(torn) == written_records[: len(read(torn))]


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_a_damaged_byte_loses_only_its_own_record(written_records, data):
    content = bytearray(written(written_records))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    found = read(bytes(content))
    hit = [n for n in range(len(written_records)) if len(written(written_records[:n])) <= at][-1]
    assert found == [record for n, record in enumerate(written_records) if n != hit]
    assert damaged_bytes(bytes(content)) > 0


@given(st.binary(max_size=300))
def test_noise_holds_no_record(noise):
    assert read(noise) == []
