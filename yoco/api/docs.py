"""The API's documentation, offline: nothing is loaded from elsewhere and no script or style is inline."""

from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.request import Request

_documents: dict[str, bytes | str] = {}


class SchemaView(SpectacularAPIView):
    """The schema, written once for each format: it takes half a second, and anybody may ask for it."""

    permission_classes = ()
    authentication_classes = ()

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        renderer = request.accepted_renderer
        if renderer.format not in _documents:
            # Nothing of the first request that asks goes into what all are told.
            schema = self.generator_class().get_schema(request=None, public=True)
            _documents[renderer.format] = renderer.render(schema, renderer.media_type, {})
        return HttpResponse(_documents[renderer.format], content_type=renderer.media_type)


class DocsView(SpectacularSwaggerSplitView):
    """Swagger UI over the schema, from the sidecar's static files."""

    url_name = "api-schema"
    template_name = "api/docs.html"
    permission_classes = ()
    authentication_classes = ()
