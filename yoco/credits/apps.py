from django.apps import AppConfig


class CreditsConfig(AppConfig):
    name = "yoco.credits"
