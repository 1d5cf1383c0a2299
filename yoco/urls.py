"""Every URL of the service. Faces own their routes; this file only mounts them."""

from django.urls import include, path

urlpatterns = [
    path("accounts/", include("allauth.account.urls")),
    path("api/v1/", include("yoco.api.urls")),
    path("desk/", include("yoco.desk.urls")),
    path("", include("yoco.portal.urls")),
]
