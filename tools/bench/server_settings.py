"""The service's settings with one more view, for benchmarks only; the DATABASE_URL of the environment applies."""

from yoco.settings import *  # noqa: F403 (all of them, unchanged)

ROOT_URLCONF = "tools.bench.server_urls"
