"""The service's benchmarks."""

from tools.bench import ingest, kernel_log, ledger, pages, years

BENCHES = (years.BENCH, pages.BENCH, ledger.BENCH, ingest.BENCH, kernel_log.BENCH)
