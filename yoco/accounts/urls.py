"""Sign-in, second factors and single sign-on, by allauth. Its list of sessions is ours (yoco.portal.views.sessions)."""

from allauth.urls import build_provider_urlpatterns
from django.urls import include, path

urlpatterns = [
    path("", include("allauth.account.urls")),
    path("2fa/", include("allauth.mfa.urls")),
    path("sso/", include("allauth.socialaccount.urls")),
    path("sso/", include(build_provider_urlpatterns())),
]
