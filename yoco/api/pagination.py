"""Cursor pages: stable while rows arrive, and as quick on the last page as on the first."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError
from django.db.models import QuerySet
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request


class CursorPages(CursorPagination):
    """`?cursor=…&page_size=…`, at most 500 rows a page, in the order that the view names."""

    page_size_query_param = "page_size"
    max_page_size = 500

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        """Raises NotFound for a cursor that nobody was given, whatever it holds."""
        try:
            return super().paginate_queryset(queryset, request, view)
        except (ValidationError, ValueError, OverflowError, DataError) as error:
            raise NotFound(self.invalid_cursor_message) from error

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: Any) -> tuple[str, ...]:
        ordering = getattr(view, "ordering", ("-id",))
        return (ordering,) if isinstance(ordering, str) else tuple(ordering)
