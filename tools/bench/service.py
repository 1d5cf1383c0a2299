"""The service's benchmarks."""

from tools.bench import ingest, ledger, years

BENCHES = (years.BENCH, ledger.BENCH, ingest.BENCH)
