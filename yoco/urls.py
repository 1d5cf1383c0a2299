"""Every URL of the service. Faces own their routes; this file only mounts them."""

from django.urls import include, path

from yoco.core import probes
from yoco.watch.views import metrics

urlpatterns = [
    path("healthz", probes.healthz, name="healthz"),
    path("readyz", probes.readyz, name="readyz"),
    path("metrics", metrics, name="metrics"),
    path("accounts/", include("yoco.accounts.urls")),
    path("api/v1/", include("yoco.api.urls")),
    path("desk/", include("yoco.desk.urls")),
    path("", include("yoco.portal.urls")),
]

handler400 = "yoco.api.errors.bad_request"
handler403 = "yoco.api.errors.permission_denied"
handler404 = "yoco.api.errors.page_not_found"
handler500 = "yoco.api.errors.server_error"
handler429 = "yoco.api.errors.too_many_requests"  # allauth asks for it by this name
