from django.apps import AppConfig


class ContractsConfig(AppConfig):
    name = "yoco.contracts"
