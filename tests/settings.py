"""Settings under pytest: PostgreSQL where `TEST_DATABASE_URL` names a throw-away server, otherwise SQLite in a file.

Nothing of the developer's environment decides which database a test writes to.
"""

import json
import os
import tempfile

_scratch = tempfile.TemporaryDirectory(prefix="yoco-test-")  # removed when this process ends

os.environ["DATABASE_URL"] = os.environ.get("TEST_DATABASE_URL") or f"sqlite:///{_scratch.name}/unused.sqlite3"
# A file of this process: threads and child processes of a test see the same database, other test runs do not.
os.environ["TEST_SQLITE_PATH"] = f"{_scratch.name}/test.sqlite3"
os.environ.pop("REDIS_URL", None)  # tasks run in-process; tests marked `redis` start real workers

# One provider of each kind, so that the addresses of both exist; tests that sign in bring their own.
os.environ["SSO_PROVIDERS"] = json.dumps(
    [
        {
            "kind": "oidc",
            "id": "acme",
            "name": "Acme",
            "domains": ["acme.example"],
            "issuer": "http://127.0.0.1:9",
            "client_id": "yoco",
        },
        {
            "kind": "saml",
            "id": "globex",
            "name": "Globex",
            "domains": ["globex.example"],
            "entity_id": "https://idp.globex.example",
            "sso_url": "https://idp.globex.example/sso",
            "certificate": "none",
        },
    ]
)

from yoco.settings import *  # noqa: E402, F403

STATIC_ROOT = _scratch.name  # nothing is collected: pages find their files where they lie
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
# Argon2 is slow on purpose.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
