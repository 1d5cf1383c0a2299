"""Routes of the customer's pages."""

from django.urls import path, re_path

from yoco.portal.views import (
    analytics,
    credits,
    fleets,
    incidents,
    organisations,
    reviews,
    scenarios,
    start,
    statements,
    terms,
    years,
)

app_name = "portal"

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
