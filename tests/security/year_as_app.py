"""A whole contract year as the role of DATABASE_URL: reports, close, credit, payment, objection, import, key, proof.

Run as a program of its own; prints the customer's e-mail address, an ingest key, and the year's address.
"""

import django

django.setup()

import time_machine  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.urls import reverse  # noqa: E402

from tests.portal.scene import NOW, build_scene, issue_and_approve  # noqa: E402
from tests.portal.test_access import import_file  # noqa: E402
from yoco.accounts.key_services import agent_key_revoke  # noqa: E402
from yoco.accounts.models import Role, Scope  # noqa: E402
from yoco.accounts.services import agent_key_create, member_role_set, reader_update  # noqa: E402
from yoco.contracts.models import Order  # noqa: E402
from yoco.core.models import OutboxPending  # noqa: E402
from yoco.credits.services import credit_apply  # noqa: E402
from yoco.guarantee.models import ImportFile  # noqa: E402
from yoco.guarantee.reviews import dispute_raise, dispute_withdraw, exclusion_decide, exclusion_propose  # noqa: E402
from yoco.guarantee.uploads import import_file_confirm  # noqa: E402
from yoco.incidents.models import Incident  # noqa: E402
from yoco.notify.fan_out import event_fan_out  # noqa: E402

with time_machine.travel(NOW, tick=True):
    scene = build_scene()
    world, first, second = scene.world, scene.world.account_manager, scene.world.second_account_manager
    issue_and_approve(scene)
    credit_apply(order_id=Order.objects.get().pk, actor=first)
    excluded = exclusion_propose(incident=scene.rolled_back, reason="user_error", note="Killed.", actor=first)
    exclusion_decide(exclusion=excluded, accept=True, note="So it was.", actor=second)
    objection = dispute_raise(incident=scene.without_loss, text="Not so.", actor=world.owner)
    dispute_withdraw(dispute=objection, actor=world.owner)
    import_file(scene)
    import_file_confirm(file=ImportFile.objects.get(), actor=first)
    member_role_set(membership=world.team_mate.memberships.get(), role=Role.ADMIN, actor=world.owner)
    reader_update(user=world.owner, time_zone="Europe/Madrid")
    agent_key_revoke(key=world.key, actor=world.owner)
    # Right after the commit a task does this; the tick would mend it unseen.
    assert event_fan_out(event_id=OutboxPending.objects.earliest("pk").pk)
    call_command("tick")
    call_command("clearsessions")
    call_command("ledger_verify")
_, text = agent_key_create(
    organisation=world.organisation, contract=scene.contract, scope=Scope.INGEST, name="live", actor=world.owner
)
assert Incident.objects.filter(contract=scene.contract).count() > 12
print(world.owner.email, text, reverse("portal:year", args=[scene.contract.pk, scene.closed_year.pk]))
