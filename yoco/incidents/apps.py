from django.apps import AppConfig


class IncidentsConfig(AppConfig):
    name = "yoco.incidents"
