"""What gunicorn needs beside its command line: `gunicorn --config python:yoco.gunicorn_conf yoco.wsgi`."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "yoco.settings")

from django.conf import settings

# Requests have their line in RequestMiddleware; gunicorn's own access log would write the tokens of links.
logconfig_dict = settings.LOGGING
