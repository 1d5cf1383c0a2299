"""When to try again: what webhooks and e-mails have in common."""

import datetime
import random

SECOND = datetime.timedelta(seconds=1)
JITTER = 0.1


def jittered(seconds: float) -> float:
    """A wait that differs a little for each, so that what failed at once does not come back at once."""
    return seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 (not a secret)
