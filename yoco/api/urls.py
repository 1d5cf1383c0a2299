"""Routes of the api face."""

from django.urls import path

from yoco.api.ingest import HeartbeatsView, ReportsView

urlpatterns = [
    path("reports", ReportsView.as_view(), name="reports"),
    path("heartbeats", HeartbeatsView.as_view(), name="heartbeats"),
]
