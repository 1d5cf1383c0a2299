from django.apps import AppConfig


class GuaranteeConfig(AppConfig):
    name = "yoco.guarantee"
