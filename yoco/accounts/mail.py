"""One place from which account e-mails leave: after the commit, in the receiver's language."""

import logging
from smtplib import SMTPException

from django.core.mail import EmailMessage
from django.db import transaction

from yoco.accounts.models import User

log = logging.getLogger(__name__)


def mail_send(message: EmailMessage) -> None:
    """Sends once the transaction has committed, at once outside of one.

    A mail server that refuses is written to the log and does not undo what the person did: invitations and password
    resets can be sent again from their page.
    """
    transaction.on_commit(lambda: _deliver(message))


def language_of(email: str) -> str:
    """The language that the person with this address chose; empty for a stranger."""
    return User.objects.filter(email=email.lower()).values_list("language", flat=True).first() or ""


def _deliver(message: EmailMessage) -> None:
    try:
        message.send()
    except (SMTPException, OSError):
        log.exception("The e-mail “%s” was not sent", message.subject)
