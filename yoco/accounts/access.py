"""The only road to a tenant's object.

Selectors and views pass a queryset through `visible` or `access`; another tenant's object does not exist (404).
Account managers see every organisation; a key sees its own, and an ingest key nothing at all.
"""

from typing import Any, TypeVar

from django.core.exceptions import ObjectDoesNotExist, PermissionDenied, ValidationError
from django.db.models import Model, QuerySet
from django.http import Http404
from structlog.contextvars import bind_contextvars

from yoco.accounts.models import AgentKey, Membership, Organisation, Role, Scope, User

M = TypeVar("M", bound=Model)
Principal = User | AgentKey

ROLE_ORDER = [Role.OWNER, Role.ADMIN, Role.MEMBER, Role.VIEWER]


def roles_from(minimum: Role) -> list[str]:
    """The roles that include `minimum`."""
    return [role.value for role in ROLE_ORDER[: ROLE_ORDER.index(minimum) + 1]]


def visible(
    queryset: QuerySet[M],
    *,
    principal: Principal,
    organisation: str = "organisation",
    minimum: Role = Role.VIEWER,
) -> QuerySet[M]:
    """The rows of `queryset` that `principal` may see with at least the role `minimum`.

    `organisation` is the lookup path from the row to its organisation, "self" when the rows are organisations.
    """
    path = "pk" if organisation == "self" else f"{organisation}_id" if "__" not in organisation else organisation
    if isinstance(principal, AgentKey):
        if principal.scope != Scope.READ or minimum is not Role.VIEWER:
            return queryset.none()
        return queryset.filter(**{path: principal.organisation_id})
    if not principal.is_authenticated or not principal.is_active:
        return queryset.none()
    if principal.is_account_manager:
        return queryset
    mine = Membership.objects.filter(user=principal, revoked_at=None, role__in=roles_from(minimum))
    return queryset.filter(**{f"{path}__in": mine.values("organisation_id")})


def access(
    queryset: QuerySet[M],
    *,
    principal: Principal,
    organisation: str = "organisation",
    minimum: Role = Role.VIEWER,
    **lookup: Any,
) -> M:
    """The one object of `queryset` that matches `lookup`.

    Raises Http404 if it does not exist or is another tenant's, PermissionDenied if the asker lacks the role.
    """
    try:
        row = visible(queryset, principal=principal, organisation=organisation).get(**lookup)
        if owner := _organisation_id(row, organisation):
            bind_contextvars(organisation_id=owner)
        if minimum is Role.VIEWER:
            return row
        allowed = visible(queryset, principal=principal, organisation=organisation, minimum=minimum)
        if not allowed.filter(pk=row.pk).exists():
            raise PermissionDenied
    except (ObjectDoesNotExist, ValidationError, ValueError) as error:
        raise Http404 from error
    return row


def _organisation_id(row: Model, path: str) -> str | None:
    """Whose object it is, for the log; None where only another query would tell."""
    *between, last = ["pk"] if path == "self" else f"{path}_id".split("__")
    for name in between:
        if name not in row._state.fields_cache:
            return None
        row = getattr(row, name)
    return str(getattr(row, last))


def access_organisation(principal: Principal, organisation_id: Any, *, minimum: Role = Role.VIEWER) -> Organisation:
    """An organisation the principal belongs to."""
    return access(
        Organisation.objects.all(),
        principal=principal,
        organisation="self",
        minimum=minimum,
        pk=organisation_id,
    )


def require_account_manager(user: User) -> User:
    """Raises Http404 for everyone else: the desk does not exist for customers."""
    if not (user.is_authenticated and user.is_active and user.is_account_manager):
        raise Http404
    return user
