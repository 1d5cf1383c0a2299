"""Kept SQL answers as the query it was made from."""

import datetime
from collections.abc import Collection

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.db.models.functions import Length
from django.test.utils import CaptureQueriesContext

from tests.people import World
from yoco.accounts.models import Membership, Role, User
from yoco.core.compiled import compiled

pytestmark = pytest.mark.django_db


def members(
    *, emails: Collection[str], role: str | None, until: datetime.datetime | None = None, newest: bool = False
) -> QuerySet[Membership]:
    found = Membership.objects.select_related("user", "organisation").filter(user__email__in=emails)
    found = found if role is None else found.filter(role=role)
    found = found if until is None else found.filter(user__date_joined__lte=until)
    return found.order_by("-pk" if newest else "pk")


@pytest.mark.parametrize("role", [None, Role.OWNER, "viewer"])
@pytest.mark.parametrize("newest", [False, True])
def test_of_any_number_of_values(world: World, role: str | None, newest: bool) -> None:
    emails = [*User.objects.order_by("pk").values_list("email", flat=True), "nobody@example.com"]
    later = world.owner.date_joined + datetime.timedelta(days=1)
    kept = compiled(members)
    for size in range(len(emails) + 1):
        for until in (None, later, world.owner.date_joined - datetime.timedelta(days=1)):
            for wanted in (emails[:size], set(emails[-size:]), dict.fromkeys(emails[size:]).keys()):
                expected = list(members(emails=wanted, role=role, until=until, newest=newest))
                with CaptureQueriesContext(connection) as queries:
                    found = kept(emails=wanted, role=role, until=until, newest=newest)
                    assert [(one.pk, one.user.name, one.organisation.slug, one.role) for one in found] == [
                        (one.pk, one.user.name, one.organisation.slug, one.role) for one in expected
                    ]
                assert len(queries) == bool(wanted)


def test_more_values_than_are_kept(world: World) -> None:
    many = [f"{number}@example.com" for number in range(1000)]
    assert [one.user for one in compiled(members)(emails=[*many, world.owner.email], role=None)] == [world.owner]


def test_a_query_that_does_more_with_a_value_is_refused() -> None:
    @compiled
    def of_length(*, name: str) -> QuerySet[User]:
        return User.objects.annotate(length=Length("name")).filter(length=len(name))

    if connection.vendor != "postgresql":
        pytest.skip("SQL is kept on PostgreSQL")
    with pytest.raises(TypeError, match="does more with name"):
        of_length(name="Ada")
