"""Routes of the customer's pages."""

from django.urls import path

from yoco.portal.views import (
    analytics,
    credits,
    incidents,
    mail,
    organisations,
    reviews,
    scenarios,
    start,
    statements,
    terms,
    webhooks,
    years,
)

app_name = "portal"
ENDPOINT = "organisations/<uuid:organisation_id>/webhooks/<uuid:endpoint_id>/"

urlpatterns = [
    path("", start.home, name="home"),
    path("preferences/", start.preferences, name="preferences"),
    path("scenarios/", scenarios.scenario, name="scenario"),
    path("settings/", start.settings_page, name="settings"),
    path("organisations/<uuid:organisation_id>/", organisations.organisation, name="organisation"),
    path("organisations/<uuid:organisation_id>/keys/new/", organisations.key_create, name="key_create"),
    path(
        "organisations/<uuid:organisation_id>/keys/<uuid:key_id>/revoke/", organisations.key_revoke, name="key_revoke"
    ),
    path(
        "organisations/<uuid:organisation_id>/members/<uuid:membership_id>/",
        organisations.member_change,
        name="member_change",
    ),
    path("organisations/<uuid:organisation_id>/webhooks/", webhooks.webhooks, name="webhooks"),
    path("organisations/<uuid:organisation_id>/webhooks/new/", webhooks.webhook_new, name="webhook_new"),
    path(ENDPOINT, webhooks.webhook, name="webhook"),
    path(f"{ENDPOINT}edit/", webhooks.webhook_edit, name="webhook_edit"),
    path(f"{ENDPOINT}secret/", webhooks.webhook_rotate, name="webhook_rotate"),
    path(f"{ENDPOINT}state/", webhooks.webhook_switch, name="webhook_switch"),
    path(f"{ENDPOINT}test/", webhooks.webhook_test, name="webhook_test"),
    path(f"{ENDPOINT}replay/", webhooks.webhook_replay, name="webhook_replay"),
    path(f"{ENDPOINT}deliveries/<uuid:delivery_id>/", webhooks.webhook_delivery, name="webhook_delivery"),
    path(
        f"{ENDPOINT}deliveries/<uuid:delivery_id>/replay/",
        webhooks.webhook_delivery_replay,
        name="webhook_delivery_replay",
    ),
    path("settings/mail/<uuid:membership_id>/", mail.mail_settings, name="mail_settings"),
    path("mail/stop/<str:token>/", mail.mail_stop_page, name="mail_stop"),
    path("contracts/<uuid:contract_id>/credits/", credits.credit_account, name="credits"),
    path("contracts/<uuid:contract_id>/credits/account.csv", credits.credit_account_csv, name="credits_csv"),
    path("contracts/<uuid:contract_id>/credits/ledger.json", credits.ledger_json, name="ledger"),
    path("contracts/<uuid:contract_id>/terms/", terms.contract_terms, name="terms"),
    path("contracts/<uuid:contract_id>/years/<uuid:year_id>/", years.year_detail, name="year"),
    path("contracts/<uuid:contract_id>/years/<uuid:year_id>/analytics/", analytics.overview, name="analytics"),
    path(
        "contracts/<uuid:contract_id>/years/<uuid:year_id>/analytics/<slug:topic>/",
        analytics.topic_page,
        name="analytics_topic",
    ),
    path(
        "contracts/<uuid:contract_id>/years/<uuid:year_id>/analytics/<slug:topic>/<slug:code>.csv",
        analytics.table_as_csv,
        name="analytics_csv",
    ),
    path(
        "contracts/<uuid:contract_id>/years/<uuid:year_id>/analytics/<slug:topic>/<slug:code>.parquet",
        analytics.table_as_parquet,
        name="analytics_parquet",
    ),
    path("contracts/<uuid:contract_id>/years/<uuid:year_id>/export.json", statements.export, name="export"),
    path(
        "contracts/<uuid:contract_id>/years/<uuid:year_id>/statements/<int:revision>/",
        statements.statement_page,
        name="statement",
    ),
    path(
        "contracts/<uuid:contract_id>/years/<uuid:year_id>/statements/<int:revision>.pdf",
        statements.statement_as_pdf,
        name="statement_pdf",
    ),
    path(
        "contracts/<uuid:contract_id>/years/<uuid:year_id>/statements/<int:revision>.json",
        statements.statement_as_json,
        name="statement_json",
    ),
    path(
        "contracts/<uuid:contract_id>/years/<uuid:year_id>/statements/<int:revision>.csv",
        statements.statement_as_csv,
        name="statement_csv",
    ),
    path(
        "contracts/<uuid:contract_id>/years/<uuid:year_id>/incidents/",
        incidents.incident_list,
        name="incidents",
    ),
    path("contracts/<uuid:contract_id>/incidents/<uuid:incident_id>/", incidents.incident_detail, name="incident"),
    path("contracts/<uuid:contract_id>/incidents/<uuid:incident_id>/dispute/", reviews.dispute, name="dispute"),
    path(
        "contracts/<uuid:contract_id>/incidents/<uuid:incident_id>/dispute/withdraw/",
        reviews.dispute_take_back,
        name="dispute_withdraw",
    ),
]
