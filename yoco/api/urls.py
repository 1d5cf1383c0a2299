"""Routes of the api face."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
