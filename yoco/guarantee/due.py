"""What is due in the guarantee, done once. `notify.due` adds the messages; the beat and `manage.py tick` call that."""

import datetime
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from yoco.credits.services import credits_sweep
from yoco.guarantee.analytics.jobs import jobs_sweep
from yoco.guarantee.intake import silences_account
from yoco.guarantee.proof import proof_start
from yoco.guarantee.services import years_close
from yoco.guarantee.snapshots import snapshots_make

log = logging.getLogger(__name__)

Step = tuple[str, Callable[[datetime.datetime], int]]


@dataclass
class Done:
    """What one tick did, a line for each step that did something, and the steps that failed."""

    lines: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def due_work_do(*, as_of: datetime.datetime, also: Sequence[Step] = ()) -> Done:
    """Accounts for silences, freezes months, moves contract years on, brings credits up to date, starts lost jobs
    again and the day's proof of the ledger, then does `also`.

    A step that fails does not keep the next from running; it is found again by the next tick. Safe to run twice at
    once, and after days of downtime.
    """
    steps: list[Step] = [
        ("unaccounted incidents opened", lambda at: sum(silences_account(as_of=at).values())),
        # Before the years: the snapshot of a year's last month shows it as it was until then.
        ("monthly snapshots made", lambda at: len(snapshots_make(as_of=at))),
        ("contract years moved on", _years),
        ("steps of credits done", lambda at: credits_sweep(as_of=at)),
        ("jobs of the analytics started again", lambda at: jobs_sweep(as_of=at)),
        ("proof of the ledger started", lambda at: proof_start(as_of=at)),
        *also,
    ]
    done = Done()
    for name, step in steps:
        try:
            number = step(as_of)
        except Exception:
            log.exception("tick: %s failed", name)
            done.failed.append(name)
        else:
            if number:
                done.lines.append(f"{number} {name}")
    return done


def _years(as_of: datetime.datetime) -> int:
    done = years_close(as_of=as_of)
    return len(done.closing) + len(done.closed) + len(done.closed_unguaranteed) + len(done.restated)
