"""The service's benchmarks."""

from tools.bench import ingest, ledger, years

BENCHES = (ingest.BENCH, years.BENCH, ledger.BENCH)
