"""Settings by environment. With no variable set, the embedded default: SQLite, in-process tasks, console e-mail.

The variables are listed in docs/settings.md; `manage.py check --deploy` judges a production environment.
"""

import ipaddress
import logging
import sys
from pathlib import Path

import environ
from celery.schedules import crontab
from csp.constants import NONCE, NONE, SELF
from django.utils.translation import gettext_lazy as _
from environ.fileaware_mapping import FileAwareMapping

from yoco.accounts.sso import sso_for_allauth, sso_read
from yoco.core.logs import logging_config

BASE_DIR = Path(__file__).resolve().parent.parent


class Environment(FileAwareMapping):
    """NAME_FILE names a file that holds the value of NAME, as Docker's and Kubernetes' secrets do."""

    def __getitem__(self, key: str) -> str:
        value: str = super().__getitem__(key)
        return value.removesuffix("\n")


env = environ.Env()
env.ENVIRON = Environment()

DEBUG = env.bool("DEBUG", default=False)
# The embedded default serves loopback only, so its key protects nothing beyond this machine; production must set
# its own (yoco.core.checks).
SECRET_KEY = env.str("SECRET_KEY", default="embedded-default-for-loopback-only-set-SECRET_KEY-in-production")
# Earlier keys: what they signed or encrypted is still read while it is renewed.
SECRET_KEY_FALLBACKS = env.list("SECRET_KEY_FALLBACKS", default=[])
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
SITE_URL = env.str("SITE_URL", default="http://127.0.0.1:8000")

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "yoco.accounts.apps.SessionsConfig",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "csp",
    "yoco.core",
    "yoco.accounts",
    "yoco.contracts",
    "yoco.incidents",
    "yoco.guarantee",
    "yoco.credits",
    "yoco.notify",
    "yoco.records",
    "yoco.api",
    "yoco.portal",
    "yoco.desk",
    "yoco.watch",
    "yoco.demo",
]

MIDDLEWARE = [
    "yoco.core.middleware.RequestMiddleware",
    "yoco.core.middleware.ClientAddressMiddleware",
    "yoco.core.middleware.HeadersMiddleware",
    "yoco.core.middleware.ApiOverHttpsMiddleware",
    "yoco.core.middleware.BodyLimitMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "yoco.portal.middleware.ReaderMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "csp.middleware.CSPMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "yoco.accounts.middleware.SessionNotesMiddleware",
    "yoco.accounts.middleware.SecondFactorMiddleware",
]

ROOT_URLCONF = "yoco.urls"
WSGI_APPLICATION = "yoco.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
                "yoco.portal.middleware.theme",
                "yoco.portal.middleware.sign_on",
            ],
        },
    }
]

DATABASES = {"default": env.db_url("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'db.sqlite3'}")}
DATABASES["default"]["ATOMIC_REQUESTS"] = False
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # IMMEDIATE takes the write lock at BEGIN, so two writers wait for each other instead of failing half-way;
    # synchronous=FULL because a 2xx answer promises that the report survives a power loss.
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA recursive_triggers=ON;",
    }
    # A file, so that live-server threads and child processes of a test see the same database.
    DATABASES["default"]["TEST"] = {
        "NAME": env.str("TEST_SQLITE_PATH", default=str(BASE_DIR / "build" / "test.sqlite3"))
    }
else:
    DATABASES["default"]["CONN_MAX_AGE"] = env.int("CONN_MAX_AGE", default=60)
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
# Covering indexes are plain ones on SQLite, where the tally is small.
SILENCED_SYSTEM_CHECKS = ["models.W040"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env.str("REDIS_URL", default="")
CACHES = {
    "default": {
        "BACKEND": "yoco.core.cache.RedisOrLocalCache",
        "LOCATION": REDIS_URL,
        "OPTIONS": {"socket_timeout": 0.2, "socket_connect_timeout": 0.2},
    }
    if REDIS_URL
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
}
CELERY_BROKER_URL = REDIS_URL or "memory://"
CELERY_TASK_ALWAYS_EAGER = not REDIS_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
# Analytics of more incidents than this are computed by a task: they would take about a second.
ANALYTICS_AT_ONCE = env.int("ANALYTICS_AT_ONCE", default=20_000)
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# A task is ended after these seconds; Redis hands one out again after an hour, so never while it still runs.
CELERY_TASK_SOFT_TIME_LIMIT = 15 * 60
CELERY_TASK_TIME_LIMIT = 16 * 60
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 60 * 60,
    "socket_connect_timeout": 2,
    "socket_timeout": 10,
    "retry_on_timeout": True,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # for ever: a broker that comes back finds its workers
TICK_SECONDS = env.float("TICK_SECONDS", default=60.0)
# A tick that nobody took in time is dropped: the next one does its work.
CELERY_BEAT_SCHEDULE = {
    "tick": {"task": "yoco.notify.tasks.tick", "schedule": TICK_SECONDS, "options": {"expires": 2 * TICK_SECONDS}},
    "retention": {"task": "yoco.records.tasks.retention", "schedule": crontab(hour=3, minute=20)},
}
# For how many days what is kept (docs/data.md); heartbeats from the day on which their contract year was closed.
RETENTION_DAYS = {
    "heartbeats": env.int("KEEP_HEARTBEATS_DAYS", default=730),
    "deliveries": env.int("KEEP_DELIVERIES_DAYS", default=90),
    "invitations": env.int("KEEP_INVITATIONS_DAYS", default=365),
    "sessions": env.int("KEEP_SESSIONS_DAYS", default=30),
    "analytics": env.int("KEEP_ANALYTICS_DAYS", default=7),
}
# The file whose age tells a health check whether the beat still sends (yoco.beat).
BEAT_STAMP = env.str("BEAT_STAMP", default="")
OUTBOX_TASK = "yoco.notify.tasks.event_announce"

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = env.str("ACCOUNT_EMAIL_VERIFICATION", default="none")
# A new address replaces the old one only once its owner has confirmed it.
ACCOUNT_CHANGE_EMAIL = True
ACCOUNT_EMAIL_NOTIFICATIONS = True
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False
# Accounts are made by invitation, by a claimed sign-on or by the operator; there is no open sign-up.
ACCOUNT_ADAPTER = "yoco.accounts.adapter.AccountAdapter"
# Also before the address or the password changes, and before a sign-on is connected.
ACCOUNT_REAUTHENTICATION_REQUIRED = True
ACCOUNT_REAUTHENTICATION_METHODS = ["password", "mfa"]  # a mailbox that is open beside the session proves nothing
ACCOUNT_REAUTHENTICATION_TIMEOUT = 300
ACCOUNT_LOGOUT_REDIRECT_URL = "/"
# Beside allauth's own limits (failed sign-ins 5 in 5 minutes for an account and 10 a minute for an address, resets, …).
ACCOUNT_RATE_LIMITS = {
    "invite": "30/h/user",
    "accept_invitation": "20/m/ip",
    "open_share": "30/m/ip",
    "open_share_pdf": "10/m/ip",
}
MFA_ADAPTER = "yoco.accounts.second_factor.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_TOTP_ISSUER = "YOCO"
MFA_TOTP_TOLERANCE = 1
# Accounts are not made by strangers, so nobody can seize an address by protecting it first.
MFA_ALLOW_UNVERIFIED_EMAIL = True
# Browsers allow passkeys over plain HTTP on localhost only, whatever is set here.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = not env.bool("HTTPS", default=False)
# Recommended: an account manager sets up a second factor before the desk and customers' data open.
REQUIRE_MFA_FOR_DESK = env.bool("REQUIRE_MFA_FOR_DESK", default=False)
# Single sign-on, see docs/people.md.
SSO_PROVIDERS = sso_read(env.str("SSO_PROVIDERS", default=""))
SOCIALACCOUNT_PROVIDERS = sso_for_allauth(SSO_PROVIDERS)
SOCIALACCOUNT_ADAPTER = "yoco.accounts.sso_adapter.SingleSignOnAdapter"
# The way to the provider begins with a link: a form that is redirected there would need its addresses in form-action.
SOCIALACCOUNT_LOGIN_ON_GET = True
SOCIALACCOUNT_EMAIL_AUTHENTICATION_AUTO_CONNECT = True
if any(provider.kind == "saml" for provider in SSO_PROVIDERS):
    INSTALLED_APPS.append("allauth.socialaccount.providers.saml")
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"

# Peppers of agent keys by number; the highest signs new keys, the others still verify. KEY_PEPPERS="1=…,2=…"
KEY_PEPPERS = {int(n): p for n, p in env.dict("KEY_PEPPERS", default={"1": SECRET_KEY}).items()}

EMAIL_CONFIG = env.email_url("EMAIL_URL", default="consolemail://")
vars().update(EMAIL_CONFIG)
DEFAULT_FROM_EMAIL = env.str("DEFAULT_FROM_EMAIL", default="YOCO <yoco@localhost>")

EMAIL_TIMEOUT = env.int("EMAIL_TIMEOUT", default=20)

# Webhooks: whole seconds for one attempt; private networks that may be reached all the same; plain HTTP or not.
WEBHOOK_TIMEOUT = env.float("WEBHOOK_TIMEOUT", default=15.0)
WEBHOOK_ALLOWED_NETWORKS = env.list("WEBHOOK_ALLOWED_NETWORKS", default=[])
WEBHOOK_ALLOW_HTTP = env.bool("WEBHOOK_ALLOW_HTTP", default=False)

LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("es", _("Spanish"))]
LOCALE_PATHS = [BASE_DIR / "locale"]
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "yoco.portal.static_plotly.PlotlyFinder",
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "yoco.api.authentication.KeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_THROTTLE_CLASSES": ["yoco.api.throttling.KeyThrottle"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "yoco.api.pagination.CursorPages",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "yoco.core.problem.problem_response",
    "PAGE_SIZE": 50,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "YOCO API",
    "VERSION": "1.0.0",
    "DESCRIPTION": "Incident reports from training agents; contracts, incidents, statements and credits for reading.",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "OAS_VERSION": "3.1.0",
    "COMPONENT_SPLIT_REQUEST": True,
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "validatorUrl": None},
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "yoco.api.schema.column_limits_drop",
        "yoco.api.schema.payload_schemas",
        "yoco.api.schema.read_problems",
    ],
    "SERVERS": [{"url": "/"}],
    "ENUM_NAME_OVERRIDES": {
        "CountedRule": "yoco.contracts.models.Counted.choices",
        "IncidentState": "yoco.incidents.models.IncidentState.choices",
        "IncidentKind": "yoco.incidents.models.Kind.choices",
        "YearState": "yoco.contracts.models.YearState.choices",
        "CreditState": "yoco.credits.models.CreditState.choices",
        "CreditBase": "yoco.contracts.models.CreditBase.choices",
        "UnaccountedRule": "yoco.contracts.models.Unaccounted.choices",
        "ReportSource": "yoco.incidents.models.ReportSource.choices",
    },
}

# ── Security: what a browser is told, and whom we believe. docs/security.md has the reasons.
HTTPS = env.bool("HTTPS", default=False)
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF, NONCE],
        "style-src": [SELF, NONCE],
        "img-src": [SELF, "data:"],
        "object-src": [NONE],
        "frame-src": [NONE],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "upgrade-insecure-requests": HTTPS,
    }
}
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# A browser takes a cookie of this prefix only over HTTPS, for this very host and for every path of it.
COOKIE_PREFIX = "__Host-" if HTTPS else ""
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME, LANGUAGE_COOKIE_NAME, THEME_COOKIE_NAME = (
    f"{COOKIE_PREFIX}{name}" for name in ("sessionid", "csrftoken", "language", "theme")
)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = HTTPS
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = LANGUAGE_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = LANGUAGE_COOKIE_SAMESITE = "Lax"  # links in e-mails open signed in
SECURE_SSL_REDIRECT = HTTPS
SECURE_REDIRECT_EXEMPT = [r"^(healthz|readyz|metrics)$"]  # they speak plain HTTP inside the network
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
if env.bool("TRUST_FORWARDED_PROTO", default=False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
# How many proxies stand before us, each of which appends to X-Forwarded-For (yoco.core.middleware).
TRUSTED_PROXIES = env.int("TRUSTED_PROXIES", default=0)

# Ingest limits (design: 1 MiB as sent, 10 MiB inflated, 500 reports).
INGEST_MAX_BODY = 1024 * 1024
INGEST_MAX_INFLATED = 10 * 1024 * 1024
INGEST_MAX_REPORTS = 500
# Requests of one key, or of one person: tokens a second, and how many may gather.
RATE_LIMITS = {
    "ingest": (env.float("INGEST_RATE", default=100.0), env.int("INGEST_BURST", default=1000)),
    "read": (env.float("READ_RATE", default=20.0), env.int("READ_BURST", default=200)),
}
# The largest upload, with its form, has a little more than 10 MiB.
MAX_BODY = DATA_UPLOAD_MAX_MEMORY_SIZE = 12 * 1024 * 1024

# Who may read /metrics; without either, nobody.
METRICS_TOKEN = env.str("METRICS_TOKEN", default="")
METRICS_ALLOWED_NETWORKS = [ipaddress.ip_network(text) for text in env.list("METRICS_ALLOWED_NETWORKS", default=[])]

# Faults go there, without anything personal (yoco.core.sentry).
SENTRY_DSN = env.str("SENTRY_DSN", default="")
SENTRY_ENVIRONMENT = env.str("SENTRY_ENVIRONMENT", default="production")

# Never written into a log or sent with a fault.
SECRET_VALUES = [
    SECRET_KEY,
    *SECRET_KEY_FALLBACKS,
    *KEY_PEPPERS.values(),
    METRICS_TOKEN,
    SENTRY_DSN,
    str(DATABASES["default"].get("PASSWORD", "")),
    str(EMAIL_CONFIG.get("EMAIL_HOST_PASSWORD") or ""),
]

# ── What the processes write down, see docs/observability.md. Warnings of Python are lines too.
logging.captureWarnings(True)
LOGGING = logging_config(
    form=env.str("LOG_FORMAT", default="text"),
    level=env.str("LOG_LEVEL", default="INFO"),
    # Of servers it is all that they say; the standard output of a command is its result.
    stream="stdout" if {"gunicorn", "celery"} & {*Path(sys.argv[0]).parts} else "stderr",
    secrets=SECRET_VALUES,
)
