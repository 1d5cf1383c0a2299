"""Routes of the desk."""

from django.urls import path, re_path

from yoco.desk.views import contracts, credits, imports, orders, portfolio, regrouping, restating, reviews

app_name = "desk"

urlpatterns = [
    path("", portfolio.portfolio, name="portfolio"),
    path("queues/<slug:name>/", portfolio.queue, name="queue"),
    path("contracts/<uuid:contract_id>/", portfolio.contract_detail, name="contract"),
    path("contracts/new/", contracts.contract_new, name="contract_new"),
    path("contracts/<uuid:contract_id>/terms/new/", contracts.terms_new, name="terms_new"),
    path("contracts/<uuid:contract_id>/guarantee/", contracts.guarantee_new, name="guarantee_new"),
    path("contracts/<uuid:contract_id>/end/", contracts.contract_end, name="contract_end"),
    path("contracts/<uuid:contract_id>/years/<uuid:year_id>/fees/", contracts.year_fees, name="year_fees"),
    path("contracts/<uuid:contract_id>/years/<uuid:year_id>/restate/", restating.restate, name="restate"),
    path("proposals/<uuid:proposal_id>/", restating.proposal, name="proposal"),
    path("contracts/<uuid:contract_id>/import/", imports.upload, name="import"),
    path("imports/<uuid:file_id>/", imports.import_file, name="import_file"),
    path("imports/<uuid:file_id>/rejects.csv", imports.import_rejects, name="import_rejects"),
    path("credits/<uuid:credit_id>/", credits.credit_detail, name="credit"),
    re_path(
        r"^credits/(?P<credit_id>[0-9a-f-]{36})/(?P<step>issue|approve|reverse|withdraw|keep)/$",
        credits.credit_step,
        name="credit_step",
    ),
    path("contracts/<uuid:contract_id>/incidents/<uuid:incident_id>/exclude/", reviews.exclude, name="exclude"),
    path("contracts/<uuid:contract_id>/incidents/<uuid:incident_id>/merge/", regrouping.merge, name="merge"),
    path("contracts/<uuid:contract_id>/incidents/<uuid:incident_id>/split/", regrouping.split, name="split"),
    path("contracts/<uuid:contract_id>/incidents/<uuid:incident_id>/revert/", regrouping.revert, name="revert"),
    path("regroupings/<uuid:proposal_id>/", regrouping.proposal, name="regrouping"),
    path("exclusions/<uuid:exclusion_id>/", reviews.exclusion, name="exclusion"),
    path("exclusions/<uuid:exclusion_id>/withdraw/", reviews.exclusion_take_back, name="exclusion_withdraw"),
    path("disputes/<uuid:dispute_id>/", reviews.dispute, name="dispute"),
    path("contracts/<uuid:contract_id>/orders/new/", orders.order_new, name="order_new"),
    path("orders/<uuid:order_id>/apply/", orders.order_apply, name="order_apply"),
    path("orders/<uuid:order_id>/cancel/", orders.order_call_off, name="order_cancel"),
]
