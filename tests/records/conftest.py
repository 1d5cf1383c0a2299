"""The same scene as the pages are tested on."""

from tests.portal.scene import scene  # noqa: F401  (a fixture)
