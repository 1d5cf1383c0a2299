"""Routes of the desk face."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
