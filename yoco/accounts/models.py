"""Users, organisations (the tenants), memberships with a role, and the keys of agents and readers."""

from typing import Any, ClassVar

from django.apps import apps
from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models, transaction
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from yoco.core.ids import uuid7


class UserQuery(BaseUserManager["User"]):
    """Creates users with a normalised e-mail address."""

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> "User":
        user = self.model(email=self.normalize_email(email).lower(), **fields)
        user.set_password(password)
        with transaction.atomic(using=self._db):
            user.save(using=self._db)
            # allauth keeps addresses beside the user. One that the operator or an invitation gave is a verified one.
            address = apps.get_model("account", "EmailAddress")
            address.objects.using(self._db).create(user=user, email=user.email, verified=True, primary=True)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> "User":
        return self.create_user(email, password, is_superuser=True, is_account_manager=True, **fields)


class Theme(models.TextChoices):
    """How pages look; `auto` follows the device."""

    AUTO = "auto", pgettext_lazy("theme", "Automatic")
    LIGHT = "light", pgettext_lazy("theme", "Light")
    DARK = "dark", pgettext_lazy("theme", "Dark")


class User(AbstractBaseUser, PermissionsMixin):
    """A person. Customers belong to organisations by membership; account managers work at the desk for all of them."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    email = models.EmailField(_("e-mail address"), unique=True)
    name = models.CharField(_("name"), max_length=120, blank=True)
    is_active = models.BooleanField(default=True)
    is_account_manager = models.BooleanField(default=False, help_text="Works for the vendor, at the desk.")
    language = models.CharField(max_length=5, blank=True)
    time_zone = models.CharField(max_length=64, default="UTC")
    theme = models.CharField(max_length=5, blank=True, choices=Theme.choices, help_text="Empty: never chosen.")
    date_joined = models.DateTimeField(default=timezone.now)
    erased_at = models.DateTimeField(null=True, blank=True)
    erased_number = models.PositiveIntegerField(
        null=True, blank=True, unique=True, help_text="What is left of the name of a person who was erased."
    )

    objects: ClassVar[UserQuery] = UserQuery()
    USERNAME_FIELD = "email"

    class Meta:
        constraints = [
            models.UniqueConstraint(Lower("email"), name="user_email_unique_any_case"),
            models.CheckConstraint(
                condition=models.Q(erased_at=None, erased_number=None)
                | models.Q(erased_at__isnull=False, erased_number__isnull=False, is_active=False, name=""),
                name="user_erased_whole",
            ),
        ]

    def __str__(self) -> str:
        if self.erased_number is not None:
            return gettext("erased person %(number)d") % {"number": self.erased_number}
        return self.name or self.email


class Organisation(models.Model):
    """A customer. Every tenant's object leads to exactly one organisation."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=200)
    slug = models.SlugField(unique=True)
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    """What a member may do; each role includes those after it."""

    OWNER = "owner", _("Owner")
    ADMIN = "admin", _("Administrator")
    MEMBER = "member", _("Member")
    VIEWER = "viewer", _("Viewer")


class Membership(models.Model):
    """A user's role in an organisation. A revoked membership gives no access."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    organisation = models.ForeignKey(Organisation, on_delete=models.PROTECT, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices)
    created_at = models.DateTimeField(default=timezone.now)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organisation", "user"],
                condition=models.Q(revoked_at=None),
                name="membership_one_live_per_user",
            ),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role_known"),
        ]


class Invitation(models.Model):
    """A role that waits for whoever can read an e-mail address. Only a hash of the link's token is stored."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    organisation = models.ForeignKey(Organisation, on_delete=models.PROTECT, related_name="invitations")
    email = models.EmailField()
    role = models.CharField(max_length=10, choices=Role.choices)
    digest = models.CharField(max_length=64, unique=True)
    invited_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    accepted_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organisation", "email"],
                condition=models.Q(accepted_at=None, revoked_at=None),
                name="invitation_one_open_per_address",
            ),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="invitation_role_known"),
            models.CheckConstraint(condition=models.Q(email=Lower("email")), name="invitation_email_lower"),
            models.CheckConstraint(
                condition=models.Q(accepted_at=None) | models.Q(revoked_at=None), name="invitation_one_end"
            ),
        ]

    def __str__(self) -> str:
        return self.email


class Scope(models.TextChoices):
    INGEST = "ingest", _("Report incidents")
    READ = "read", _("Read")


class AgentKey(models.Model):
    """A machine's key, `yoco_<kind>_<lookup>_<secret><checksum>`; only an HMAC under a numbered pepper is stored.

    A key that reports incidents belongs to one contract, so that no report can choose whose guarantee it counts in.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    organisation = models.ForeignKey(Organisation, on_delete=models.PROTECT, related_name="keys")
    contract = models.ForeignKey(
        "contracts.Contract", null=True, blank=True, on_delete=models.PROTECT, related_name="agent_keys"
    )
    name = models.CharField(max_length=80)
    scope = models.CharField(max_length=10, choices=Scope.choices)
    lookup = models.CharField(max_length=12, unique=True)
    digest = models.CharField(max_length=64)
    pepper = models.PositiveSmallIntegerField()
    created_at = models.DateTimeField(default=timezone.now)
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(scope__in=Scope.values), name="agent_key_scope_known"),
            models.CheckConstraint(
                condition=~models.Q(scope=Scope.INGEST) | models.Q(contract__isnull=False),
                name="agent_key_ingest_names_contract",
            ),
        ]

    # DRF asks these of whatever authenticates a request.
    is_authenticated = True

    def __str__(self) -> str:
        return f"yoco_{self.scope}_{self.lookup}_…"

    @property
    def is_live(self) -> bool:
        """Whether it is accepted now."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > timezone.now())
