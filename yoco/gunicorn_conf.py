"""What gunicorn needs beside its command line: `gunicorn --config python:yoco.gunicorn_conf yoco.wsgi`."""

import os
import shutil
import tempfile
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "yoco.settings")
# Its processes add up what they count in files of this directory; before prometheus_client is imported, which looks.
counted_in = tempfile.mkdtemp(prefix="yoco-metrics-")
os.environ["PROMETHEUS_MULTIPROC_DIR"] = counted_in

from django.conf import settings  # noqa: E402  (it reads the first variable)

# Requests have their line in RequestMiddleware; gunicorn's own access log would write the tokens of links.
logconfig_dict = settings.LOGGING


def on_exit(server: Any) -> None:
    """Leaves nothing behind."""
    shutil.rmtree(counted_in, ignore_errors=True)
