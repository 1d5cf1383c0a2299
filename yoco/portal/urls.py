"""Routes of the customer's pages."""

from django.urls import path, re_path

from yoco.portal.views import (
    analytics,
    credits,
    first_run,
    fleets,
    incidents,
    invitations,
    keys,
    organisations,
    reviews,
    scenarios,
    sessions,
    sign_on,
    start,
    statements,
    terms,
    years,
)

app_name = "portal"

urlpatterns = [
    path("", start.home, name="home"),
    path("preferences/", start.preferences, name="preferences"),
    path("sign-on/", sign_on.sign_on, name="sign_on"),
    path("scenarios/", scenarios.scenario, name="scenario"),
    path("settings/", start.settings_page, name="settings"),
    path("settings/sessions/", sessions.sessions, name="sessions"),
    path("settings/sessions/end-others/", sessions.sessions_end_others, name="sessions_end_others"),
    path("settings/sessions/<int:session_id>/end/", sessions.session_end, name="session_end"),
    path("invitations/<str:token>/", invitations.invitation, name="invitation"),
    path("organisations/<uuid:organisation_id>/", organisations.organisation, name="organisation"),
    path("organisations/<uuid:organisation_id>/keys/new/", keys.key_create, name="key_create"),
    path("organisations/<uuid:organisation_id>/keys/<uuid:key_id>/", keys.key_detail, name="key"),
    path("organisations/<uuid:organisation_id>/keys/<uuid:key_id>/rotate/", keys.key_rotate, name="key_rotate"),
    path("organisations/<uuid:organisation_id>/keys/<uuid:key_id>/revoke/", keys.key_revoke, name="key_revoke"),
    path("organisations/<uuid:organisation_id>/invitations/", organisations.invite, name="invite"),
    path(
        "organisations/<uuid:organisation_id>/invitations/<uuid:invitation_id>/withdraw/",
        organisations.invitation_withdraw,
        name="invitation_withdraw",
    ),
    path("fleet/", fleets.of_all, name="fleet_all"),
    re_path(r"^fleet/(?P<code>[a-z_]+)\.(?P<kind>csv|parquet)$", fleets.of_all_file, name="fleet_all_file"),
    path("organisations/<uuid:organisation_id>/fleet/", fleets.of_organisation, name="fleet"),
    re_path(
        r"^organisations/(?P<organisation_id>[0-9a-f-]{36})/fleet/(?P<code>[a-z_]+)\.(?P<kind>csv|parquet)$",
        fleets.of_organisation_file,
        name="fleet_file",
    ),
    path(
        "organisations/<uuid:organisation_id>/members/<uuid:membership_id>/",
        organisations.member_change,
        name="member_change",
    ),
    path("contracts/<uuid:contract_id>/first-run/", first_run.first_run, name="first_run"),
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
