from django.apps import AppConfig


class PortalConfig(AppConfig):
    name = "yoco.portal"
