"""The service with one more address, `/hello`, that does nothing: what Django itself costs on the same server."""

from django.http import HttpRequest, HttpResponse
from django.urls import include, path


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


urlpatterns = [path("hello", hello), path("", include("yoco.urls"))]
