"""Addresses under /api/v1/ that lead nowhere answer as problem+json too."""

from typing import Any

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView


class NothingView(APIView):
    """404 for every method."""

    authentication_classes = ()
    permission_classes = ()
    throttle_classes = ()

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        raise Http404

    post = put = patch = delete = get
