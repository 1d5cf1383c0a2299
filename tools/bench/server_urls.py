"""The service's routes and a view that does nothing, through the same middleware on the same server."""

from django.http import HttpRequest, HttpResponse
from django.urls import path

from yoco.urls import urlpatterns as service


def hello(_request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


urlpatterns = [path("bench/hello", hello), *service]
