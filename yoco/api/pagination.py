"""Cursor pages: stable while rows arrive, and as quick on the last page as on the first."""

from rest_framework.pagination import CursorPagination


class CursorPages(CursorPagination):
    """`?cursor=…&page_size=…`, at most 500 rows a page; each view names its own ordering."""

    page_size_query_param = "page_size"
    max_page_size = 500
    ordering = "-id"
