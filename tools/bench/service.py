"""The service's benchmarks."""

from tools.bench import ingest, kernel_log, ledger, years

BENCHES = (years.BENCH, ledger.BENCH, ingest.BENCH, kernel_log.BENCH)
