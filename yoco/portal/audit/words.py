"""A sentence for each audited action. `%(…)s` are details of the entry, in words (`details.py`)."""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

Word = str | Promise

# What a reader filters by, each with the actions in it.
SENTENCES: dict[str, tuple[Word, dict[str, Word]]] = {
    "contracts": (
        _("Contracts and orders"),
        {
            "contract.created": _("Contract %(number)s was recorded."),
            "contract.guarantee_added": _("A guarantee from %(guarantee_from)s on was added."),
            "contract.ended_early": _("The contract's last day became %(ends_on)s; it was %(before)s."),
            "terms.created": _("Version %(version)s of the terms was recorded, in force from %(effective_on)s."),
            "order.recorded": _("Order %(number)s of %(amount)s was recorded."),
            "order.cancelled": _("Order %(number)s was cancelled."),
            "terms.proposed": _("A new version of the terms was proposed."),
            "terms.accepted": _("The proposed version of the terms was accepted."),
            "terms.rejected": _("The proposed version of the terms was rejected."),
            "terms.withdrawn": _("The proposed version of the terms was withdrawn."),
            "contract_end.proposed": _("An early end of the contract was proposed."),
            "contract_end.accepted": _("The early end of the contract was accepted."),
            "contract_end.rejected": _("The early end of the contract was rejected."),
            "contract_end.withdrawn": _("The early end of the contract was withdrawn."),
        },
    ),
    "years": (
        _("Contract years and statements"),
        {
            "year.closing": _("The year ended; late reports still count."),
            "year.closed": _("The year was closed."),
            "year.restated": _("The statement was revised: revision %(revision)s."),
            "restatement.proposed": _("A revision of the statement was proposed."),
            "restatement.accepted": _("The proposed revision was accepted."),
            "restatement.rejected": _("The proposed revision was rejected."),
            "restatement.withdrawn": _("The proposed revision was withdrawn."),
            "year.fees_recorded": _("The fees of the year were recorded: %(fees)s."),
            "year.fees_restated": _("The fees of the year were changed from %(before)s to %(fees)s."),
            "snapshot.created": _("The snapshot of month %(month)s was frozen."),
            "statement.shared": _(
                "A link to revision %(revision)s of the statement was made, open until %(expires_at)s."
            ),
            "statement.share_revoked": _("A link to revision %(revision)s of the statement was revoked."),
        },
    ),
    "credits": (
        _("Credits"),
        {
            "credit.proposed": _("A credit was proposed."),
            "credit.issued": _("The credit was issued."),
            "credit.approved": _("The credit was approved."),
            "credit.amount_fixed": _("The amount of the credit was fixed: %(amount)s."),
            "credit.amount_unfixed": _("The amount of the credit is open again, because its order was cancelled."),
            "credit.applied": _("%(amount)s of the credit paid an order."),
            "credit.reinstated": _("%(amount)s came back to the credit from a cancelled order."),
            "credit.reversed": _("The credit was reversed."),
            "credit.expired": _("The credit expired; %(amount)s was left of it."),
            "credit.review_begun": _("The credit was put in question; it pays nothing until that is settled."),
            "credit.review_ended": _("The credit is no longer in question."),
            "credit.settled": _("It was settled what becomes of the credit."),
        },
    ),
    "incidents": (
        _("Incidents and decisions about them"),
        {
            "incidents.imported": _(
                "The file “%(name)s” was imported: %(created)s reports, %(rejected)s lines rejected."
            ),
            "incident.commented": _("A comment was written."),
            "exclusion.proposed": _("An exclusion was proposed."),
            "exclusion.accepted": _("The exclusion was accepted."),
            "exclusion.rejected": _("The exclusion was rejected."),
            "exclusion.withdrawn": _("The exclusion was withdrawn."),
            "dispute.raised": _("An objection was raised."),
            "dispute.accepted": _("The objection was upheld."),
            "dispute.rejected": _("The objection was turned down."),
            "dispute.withdrawn": _("The objection was withdrawn."),
            "incidents.merged": _("The incident was merged with others into one event."),
            "incident.split": _("The incident was split from its event."),
            "incident.regrouping_reverted": _("The incident was left to the rules that group incidents."),
            "regrouping.proposed": _("Another grouping of incidents was proposed."),
            "regrouping.accepted": _("The proposed grouping was accepted."),
            "regrouping.rejected": _("The proposed grouping was rejected."),
            "regrouping.withdrawn": _("The proposed grouping was withdrawn."),
        },
    ),
    "people": (
        _("People and roles"),
        {
            "organisation.created": _("The organisation was recorded."),
            "user.created": _("An account was made by way of an invitation."),
            "member.added": _("%(person)s became a member with the role %(role)s."),
            "member.role_changed": _("The role of %(person)s was changed from %(before)s to %(role)s."),
            "member.revoked": _("The membership of %(person)s (%(role)s) was ended."),
            "invitation.created": _("%(address)s was invited with the role %(role)s."),
            "invitation.accepted": _("The invitation of %(address)s was accepted."),
            "invitation.revoked": _("The invitation of %(address)s was withdrawn."),
            "invitation.erased": _("The address of an invitation was erased."),
            "person.erased": _("A person was erased, and is called erased person %(number)s from now on."),
            "organisation.exported": _("Everything that is kept of the organisation was exported."),
            "mail.preference_set": _("The choice of e-mail notices was changed."),
        },
    ),
    "access": (
        _("Keys and webhooks"),
        {
            "key.created": _("The key “%(name)s” was made."),
            "key.rotated": _("The key “%(name)s” got a successor."),
            "key.revoked": _("The key “%(name)s” was revoked."),
            "webhook.created": _("The webhook “%(name)s” was made."),
            "webhook.changed": _("The webhook “%(name)s” was changed."),
            "webhook.secret_rotated": _("The webhook “%(name)s” got a new secret."),
            "webhook.enabled": _("The webhook “%(name)s” was switched on."),
            "webhook.disabled": _("The webhook “%(name)s” was switched off."),
            "webhook.tested": _("A test event was sent to the webhook “%(name)s”."),
            "webhook.replayed": _("A delivery to a webhook was sent again."),
            "webhook.dead_replayed": _("%(number)s deliveries to a webhook were sent again."),
        },
    ),
    "sign_in": (
        _("Signing in"),
        {
            "sign_in.password_changed": _("The password was changed."),
            "sign_in.password_set": _("A password was set."),
            "sign_in.password_reset": _("The password was reset through a link by e-mail."),
            "sign_in.email_changed": _("The e-mail address was changed."),
            "sign_in.email_deleted": _("An e-mail address was removed."),
            "sign_in.totp_activated": _("An authenticator app was set up."),
            "sign_in.totp_deactivated": _("The authenticator app was removed."),
            "sign_in.recovery_codes_generated": _("New recovery codes were made."),
            "sign_in.webauthn_added": _("A passkey was added."),
            "sign_in.webauthn_removed": _("A passkey was removed."),
            "sign_in.account_connected": _("A single sign-on was connected."),
            "sign_in.account_disconnected": _("A single sign-on was disconnected."),
            "sessions.ended": _("Sessions were ended."),
            "reader.updated": _("The person's own settings were changed."),
        },
    ),
}
KINDS: list[tuple[str, Word]] = [(kind, name) for kind, (name, _actions) in SENTENCES.items()]
SENTENCE: dict[str, Word] = {action: text for _name, actions in SENTENCES.values() for action, text in actions.items()}
UNKNOWN = _("Recorded as %(action)s.")

# What a person did to the own account, and its organisations may know because that account opens their pages. Not
# those: single sign-ons belong to one organisation, and settings to the person alone.
OF_A_MEMBER = [
    action
    for action in SENTENCES["sign_in"][1]
    if not action.startswith("sign_in.account_") and action != "reader.updated"
]
