"""Everything that is due, done once: the beat calls it every minute, `manage.py tick` on demand."""

import datetime

from django.conf import settings
from django.utils import timezone

from yoco.core.jobs import TICK, job_note
from yoco.guarantee.due import Done, Step, due_work_do
from yoco.notify.digests import digests_make
from yoco.notify.fan_out import events_fan_out
from yoco.notify.mail import mails_due
from yoco.notify.tasks import mail_send, webhook_deliver
from yoco.notify.webhooks import deliveries_due

# What one tick hands to the workers; the next one goes on.
AT_ONCE = 500


def tick_do(*, as_of: datetime.datetime) -> Done:
    """The steps of the guarantee, then the deliveries of what they and everybody else had to tell."""
    done = due_work_do(as_of=as_of, also=STEPS)
    job_note(name=TICK, ok=not done.failed, detail="; ".join(done.failed))
    return done


def deliveries_send() -> int:
    """Queues what is due by now, what this tick has made included; without a broker it is sent here."""
    as_of = timezone.now()
    webhooks = list(deliveries_due(as_of=as_of).values_list("pk", flat=True)[:AT_ONCE])
    mails = list(mails_due(as_of=as_of).values_list("pk", flat=True)[:AT_ONCE])
    # While workers lag, the next ticks queue the same again: what is older than that need not run.
    expires = 2 * settings.TICK_SECONDS
    for pk in webhooks:
        webhook_deliver.apply_async([str(pk)], expires=expires)
    for pk in mails:
        mail_send.apply_async([str(pk)], expires=expires)
    return len(webhooks) + len(mails)


STEPS: list[Step] = [
    ("events passed on", lambda at: events_fan_out()),
    ("digests made", lambda at: digests_make(as_of=at)),
    ("deliveries sent", lambda at: deliveries_send()),
]
