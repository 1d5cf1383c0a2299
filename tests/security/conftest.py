"""The same scene as the pages are tested on."""

from tests.portal.conftest import translations_compiled  # noqa: F401  (a fixture)
from tests.portal.scene import scene  # noqa: F401  (a fixture)
