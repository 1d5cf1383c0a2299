"""The API's documentation, offline: nothing is loaded from elsewhere and no script or style is inline."""

from drf_spectacular.views import SpectacularSwaggerSplitView


class DocsView(SpectacularSwaggerSplitView):
    """Swagger UI over the schema, from the sidecar's static files."""

    url_name = "api-schema"
    template_name = "api/docs.html"
    permission_classes = ()
    authentication_classes = ()
