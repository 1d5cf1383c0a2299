"""Time of watching: merged boots, whatever their order, overlap and cut."""

import itertools
import uuid

from hypothesis import given
from hypothesis import strategies as st

from yoco.guarantee.analytics.exposure import Watched, merged

SPANS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 200)).map(lambda pair: (pair[0], sum(pair))))


@given(spans=SPANS, cuts=st.lists(st.integers(0, 1200), max_size=10))
def test_each_moment_counts_once_and_falls_in_one_week(spans: list[tuple[int, int]], cuts: list[int]) -> None:
    run = Watched(uuid.uuid4(), uuid.uuid4(), "run", 16, None, merged(spans))
    assert run.watched_ms == len({moment for start, end in spans for moment in range(start, end)})
    edges = sorted({0, 1200, *cuts})
    assert sum(run.within(start, end) for start, end in itertools.pairwise(edges)) == run.watched_ms
    assert run.nodes == 2
    assert run.gpu_ms == 16 * run.watched_ms
