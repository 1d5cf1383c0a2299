"""Files that people save and open in a spreadsheet."""

import re
from typing import TypeVar

from django.http.response import HttpResponseBase

R = TypeVar("R", bound=HttpResponseBase)

# What a spreadsheet takes for a formula where it begins a cell.
FORMULA = re.compile(r"^[\s]*[=+\-@]|^[\t\r\n]")
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def attachment(response: R, *parts: object) -> R:
    """The response as a file whose name is these parts with hyphens between them.

    Contract numbers are free text: what is no letter, digit, dot, hyphen or underscore becomes a hyphen, so that no
    name ends the header, the quotes or the folder.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(map(str, parts))).strip("-.")
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def cell(value: object) -> object:
    """A value for a CSV file: text that a spreadsheet would run begins with an apostrophe, which it shows as text."""
    if isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value):
        return f"'{value}"
    return value
