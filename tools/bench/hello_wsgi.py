"""WSGI application of the service with `/hello`."""

from django.conf import settings

from yoco.wsgi import application

settings.ROOT_URLCONF = "tools.bench.hello"

__all__ = ["application"]
