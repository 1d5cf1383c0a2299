from django.db import migrations

from yoco.core.append_only import AppendOnly
from yoco.core.vendor_sql import VendorSQL
from yoco.credits import triggers


class Migration(migrations.Migration):
    dependencies = [("credits", "0001_initial")]
    operations = [
        AppendOnly("credits_ledgeraccount"),
        AppendOnly("credits_ledgertransaction"),
        AppendOnly("credits_posting"),
        AppendOnly("credits_seal"),
        AppendOnly("credits_ledgerrequest"),
        VendorSQL(
            postgresql=triggers.POSTGRESQL,
            sqlite=triggers.SQLITE,
            undo_postgresql=triggers.UNDO_POSTGRESQL,
            undo_sqlite=triggers.UNDO_SQLITE,
        ),
    ]
