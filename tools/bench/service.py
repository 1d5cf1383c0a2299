"""The service's benchmarks."""

from tools.bench import ledger, years

BENCHES = (years.BENCH, ledger.BENCH)
