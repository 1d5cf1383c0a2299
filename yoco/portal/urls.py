"""Routes of the portal face."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
