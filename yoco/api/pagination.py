"""Cursor pages: stable while rows arrive, and as quick on the last page as on the first."""

from typing import Any

from django.db.models import QuerySet
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request


class CursorPages(CursorPagination):
    """`?cursor=…&page_size=…`, at most 500 rows a page, in the order that the view names."""

    page_size_query_param = "page_size"
    max_page_size = 500

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: Any) -> tuple[str, ...]:
        ordering = getattr(view, "ordering", ("-id",))
        return (ordering,) if isinstance(ordering, str) else tuple(ordering)
