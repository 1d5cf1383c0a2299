"""Routes of the desk."""

from django.urls import path, re_path

from yoco.desk.views import credits, portfolio, reviews

app_name = "desk"

urlpatterns = [
    path("", portfolio.portfolio, name="portfolio"),
    path("contracts/<uuid:contract_id>/", portfolio.contract_detail, name="contract"),
    path("credits/<uuid:credit_id>/", credits.credit_detail, name="credit"),
    re_path(
        r"^credits/(?P<credit_id>[0-9a-f-]{36})/(?P<step>issue|approve|reverse)/$",
        credits.credit_step,
        name="credit_step",
    ),
    path("contracts/<uuid:contract_id>/incidents/<uuid:incident_id>/exclude/", reviews.exclude, name="exclude"),
    path("exclusions/<uuid:exclusion_id>/", reviews.exclusion, name="exclusion"),
    path("exclusions/<uuid:exclusion_id>/withdraw/", reviews.exclusion_take_back, name="exclusion_withdraw"),
    path("disputes/<uuid:dispute_id>/", reviews.dispute, name="dispute"),
    path("orders/<uuid:order_id>/apply/", credits.order_apply, name="order_apply"),
]
