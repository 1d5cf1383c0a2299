"""Routes of the customer's pages."""

from django.urls import path

from yoco.portal.views import credits, incidents, reviews, start, years

app_name = "portal"

urlpatterns = [
    path("", start.home, name="home"),
    path("preferences/", start.preferences, name="preferences"),
    path("settings/", start.settings_page, name="settings"),
    path("contracts/<uuid:contract_id>/credits/", credits.credit_account, name="credits"),
    path("contracts/<uuid:contract_id>/years/<uuid:year_id>/", years.year_detail, name="year"),
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
