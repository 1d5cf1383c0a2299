"""The service's benchmarks."""

from tools.bench import years

BENCHES = (years.BENCH,)
