"""What is agreed, at the desk: a contract, its terms, fees, guarantee, end; entered, previewed, confirmed, refused."""

import datetime
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from tests.desk.test_credits import sign_in
from tests.portal.scene import Scene
from tests.portal.test_pages import QUERIES_PER_PAGE
from yoco.accounts.models import Organisation
from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms
from yoco.contracts.services import contract_create
from yoco.contracts.words import SHARES, TERMS_LABELS
from yoco.core.models import AuditEntry
from yoco.credits.services import year_fees_record
from yoco.guarantee.models import Proposal
from yoco.guarantee.proposals import agreement_sha256

D = datetime.date


@pytest.fixture
def desk(client: Client, scene: Scene) -> Client:
    sign_in(client, scene.world.account_manager)
    return client


def send(client: Client, url: str, decision: str = "confirm", **fields: Any) -> tuple[int, str]:
    answer = client.post(url, {"decision": decision, **fields})
    return answer.status_code, answer.content.decode().replace("\xa0", " ")


def propose(client: Client, scene: Scene, url: str, **fields: Any) -> str:
    """Previews, confirms what was shown, and has the second person open the proposal; returns its address."""
    _, page = send(client, url, "preview", **fields)
    shown = re.search(r'name="shown" value="([0-9a-f]{64})"', page)
    assert shown is not None, page
    assert send(client, url, shown=shown.group(1), **fields)[0] == 302
    sign_in(client, scene.world.second_account_manager)
    return reverse("desk:proposal", args=[Proposal.objects.get(state="pending").pk])


def entries(terms: GuaranteeTerms, **changes: Any) -> dict[str, Any]:
    """What the form of the terms sends, as it stands and with `changes`."""
    said: dict[str, Any] = {}
    for name in TERMS_LABELS:
        value = (
            f"{getattr(terms, f'{name}_num')}/{getattr(terms, f'{name}_den')}"
            if name in SHARES
            else getattr(terms, name)
        )
        if value is not None and value is not False:
            said[name] = value
    return {**said, **changes}


def terms_url(scene: Scene) -> str:
    return reverse("desk:terms_new", args=[scene.contract.pk])


def test_a_version_of_the_terms_is_entered_previewed_as_a_diff_and_put_into_force(desk: Client, scene: Scene) -> None:
    first = scene.contract.terms.get()
    page = desk.get(terms_url(scene)).content.decode()
    assert 'value="90/100"' in page
    assert "Show what changes" in page
    fields = entries(
        first,
        effective_on="2028-09-01",
        threshold="95/100",
        credit_base="year_fees",
        exclusions=["user_error", "site_outage"],
        credit_expiry="months",
        credit_expiry_months="18",
        reason="Agreed with the renewal.",
    )
    status, page = send(desk, terms_url(scene), "preview", **fields)
    assert status == 200
    for text in (
        "<del>90/100</del>",
        "<ins>95/100</ins>",
        "<ins>The fees of the year that fell short</ins>",
        "<ins>User error, Site-wide power or network loss</ins>",
        "<ins>version 2, from 1 Sept 2028</ins>",
        "terms version 2</ins>",  # of the third year
    ):
        assert text in page, text
    assert "Credit if a year falls short" not in page  # it stays as it is
    assert scene.contract.terms.count() == 1

    url = propose(desk, scene, terms_url(scene), **fields)
    assert scene.contract.terms.count() == 1
    _, page = send(desk, url, "nothing")
    assert "Agreed with the renewal." in page
    assert "<ins>95/100</ins>" in page
    assert send(desk, url, "accept", note="As agreed.")[0] == 302
    second = scene.contract.terms.get(version=2)
    assert (second.threshold_num, second.threshold_den, second.credit_base) == (95, 100, "year_fees")
    assert (second.credit_expiry, second.credit_expiry_months, second.credit_expires_on) == ("months", 18, None)
    assert (second.exclusions, second.unit) == (["user_error", "site_outage"], first.unit)
    entry = AuditEntry.objects.get(action="terms.created", subject_id=str(second.pk))
    assert entry.actor_id == scene.world.account_manager.pk
    assert entry.data["changed"] == [
        "credit_base",
        "credit_expiry",
        "credit_expiry_months",
        "exclusions",
        "threshold_num",
    ]

    desk.force_login(scene.world.owner)
    page = desk.get(reverse("portal:terms", args=[scene.contract.pk])).content.decode()
    assert "In force: version 1" in page
    assert "Compare two versions" in page
    assert "To come" in page
    assert "<ins>95/100</ins>" in page


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"threshold": "90"}, "Write a fraction from 0 to 1"),
        ({"threshold": "101/100"}, "Write a fraction from 0 to 1"),
        ({"threshold": "1/0"}, "Write a fraction from 0 to 1"),
        ({"threshold": "0/100"}, "This share is greater than zero."),
        ({"credit_cap": "0/1"}, "This share is greater than zero."),
        ({"unit": "gpu"}, "Select a valid choice."),
        ({"exclusions": ["bad_luck"]}, "Select a valid choice."),
        ({"relapse_window_minutes": "-1"}, "greater than or equal to 0"),
        ({"relapse_window_minutes": "99999999999"}, "less than or equal to 100000"),
        ({"credit_expiry": "date"}, "Give the day"),
        ({"credit_expiry": "months"}, "Give the months"),
        ({"credit_expiry_months": "3"}, "or leave them empty if a credit expires otherwise"),
        ({"effective_on": "2027-02-30"}, "Enter a valid date."),
        ({"effective_on": ""}, "This field is required."),
        ({"effective_on": "9999-12-31"}, "less than or equal to"),
        ({"effective_on": "2026-09-01"}, "a later version takes effect later"),
        ({"effective_on": "2027-09-01"}, "A year that has begun keeps its terms"),
        ({"credit_cap": "1/2", "effective_on": "2027-11-01"}, "An order of 2027-11-02 is recorded"),
        ({"threshold": "90/100"}, "Nothing differs from the version before."),
    ],
)
def test_terms_that_cannot_be_are_refused_in_words(
    desk: Client, scene: Scene, changes: dict[str, Any], says: str
) -> None:
    fields = entries(scene.contract.terms.get(), effective_on="2028-09-01", threshold="95/100", reason="x") | changes
    fields["shown"] = agreement_sha256(scene.contract)
    for decision in ("preview", "confirm"):
        status, page = send(desk, terms_url(scene), decision, **fields)
        assert status in (200, 409)
        assert says in page
        assert "Propose the version" not in page
    assert scene.contract.terms.count() == 1
    assert not Proposal.objects.exists()


def test_a_preview_leads_back_to_the_entries(desk: Client, scene: Scene) -> None:
    fields = entries(scene.contract.terms.get(), effective_on="2028-09-01", threshold="95/100", reason="x")
    _, page = send(desk, terms_url(scene), "change", **fields)
    assert 'value="95/100"' in page
    assert "Show what changes" in page


def test_terms_that_something_overtook_are_not_confirmed(desk: Client, scene: Scene) -> None:
    fields = entries(scene.contract.terms.get(), effective_on="2028-09-01", threshold="95/100", reason="x")
    _, page = send(desk, terms_url(scene), shown="0" * 64, **fields)
    assert "What is agreed under this contract has changed since this was shown." in page
    assert not Proposal.objects.exists()
    url = propose(desk, scene, terms_url(scene), **fields)
    year_fees_record(year=scene.running_year, fees_minor=100, actor=scene.world.account_manager)
    _, page = send(desk, url, "nothing")
    assert "It cannot be confirmed any more:" in page
    assert send(desk, url, "accept", note="Yes.")[0] == 409
    assert scene.contract.terms.count() == 1
    sign_in(desk, scene.world.account_manager)
    assert send(desk, url, "withdraw", note="Anew.")[0] == 302
    assert Proposal.objects.get().state == "withdrawn"


CONTRACT = {
    "customer": "Borealis Lab",
    "number": "BOR-1",
    "name": "Cluster North",
    "currency": "JPY",
    "time_zone": "Asia/Tokyo",
    "starts_on": "2027-12-01",
    "last_day": "2029-11-30",
    "guarantee_from": "2027-12-01",
    "price_per_gpu_hour": "310.5",
}
NEW = "/desk/contracts/new/"


def test_a_contract_is_recorded_with_its_customer_years_and_terms(desk: Client) -> None:
    fields = entries(GuaranteeTerms(), **CONTRACT, threshold="97/100")
    status, page = send(desk, NEW, "preview", **fields)
    assert status == 200
    for text in ("<ins>Borealis Lab</ins>", "<ins>30 Nov 2029</ins>", "<ins>97/100</ins>", "1 Dec 2027 – 30 Nov 2028"):  # noqa: RUF001
        assert text in page, text
    assert not Organisation.objects.filter(name="Borealis Lab").exists()

    assert send(desk, NEW, **fields)[0] == 302
    contract = Contract.objects.get(number="BOR-1")
    assert (contract.organisation.name, contract.organisation.slug) == ("Borealis Lab", "borealis-lab")
    assert (contract.currency, contract.ends_on, contract.guarantee_from) == ("JPY", D(2029, 12, 1), D(2027, 12, 1))
    assert (contract.years.count(), contract.terms.get().threshold_num) == (2, 97)
    for action in ("organisation.created", "contract.created", "terms.created"):
        assert AuditEntry.objects.filter(action=action, organisation_id=contract.organisation_id).count() == 1

    again = entries(GuaranteeTerms(), **CONTRACT)
    status, page = send(desk, NEW, **again)
    assert (status, Organisation.objects.filter(name="Borealis Lab").count()) == (409, 1)
    assert "There is already a contract BOR-1." in page
    known = {**again, "customer": "", "organisation": str(contract.organisation_id), "number": "BOR-2"}
    assert send(desk, NEW, **known)[0] == 302
    assert contract.organisation.contracts.count() == 2
    assert send(desk, NEW, **{**again, "number": "BOR-3"})[0] == 302  # another customer of the same name
    assert Contract.objects.get(number="BOR-3").organisation.slug == "borealis-lab-2"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"customer": ""}, "Choose a customer, or give the name of a new one."),
        ({"number": " "}, "This field is required."),
        ({"currency": "EURO"}, "Select a valid choice."),
        ({"time_zone": "Mars/Olympus"}, "Select a valid choice."),
        ({"last_day": "2027-11-30"}, "A contract ends after it starts."),
        ({"guarantee_from": "2027-11-30"}, "The guarantee begins on a day of the contract."),
        ({"starts_on": "2026-01-01", "guarantee_from": "2026-08-02"}, "The guarantee is offered from 2026-08-03 on."),
        ({"number": "ACME-7"}, "There is already a contract ACME-7."),
        ({"last_day": "9999-12-31"}, "less than or equal to"),
    ],
)
def test_contracts_that_cannot_be_are_refused_in_words(desk: Client, changes: dict[str, str], says: str) -> None:
    before = Contract.objects.count(), Organisation.objects.count()
    for decision in ("preview", "confirm"):
        status, page = send(desk, NEW, decision, **{**entries(GuaranteeTerms(), **CONTRACT), **changes})
        assert status in (200, 409)
        assert says in page
        assert "Record the contract</button>" not in page
    assert (Contract.objects.count(), Organisation.objects.count()) == before


def later(scene: Scene) -> Contract:
    """A contract in force without the guarantee."""
    return contract_create(
        organisation=scene.world.organisation,
        number="ACME-8",
        name="Second cluster",
        currency="USD",
        time_zone="Europe/Madrid",
        starts_on=D(2026, 1, 1),
        ends_on=D(2029, 1, 1),
        actor=None,
    )


def test_the_guarantee_is_added_to_a_contract_in_force(desk: Client, scene: Scene) -> None:
    contract = later(scene)
    url = reverse("desk:guarantee_new", args=[contract.pk])
    assert 'value="2027-11-20"' in desk.get(url).content.decode()  # today
    status, page = send(desk, url, "preview", guarantee_from="2027-12-01")
    assert (status, "<ins>1 Dec 2027</ins>" in page, "guaranteed from 1 Dec 2027" in page) == (200, True, True)
    for day, says in (("2026-08-02", "offered from 2026-08-03"), ("2029-01-01", "begins on a day of the contract")):
        status, page = send(desk, url, guarantee_from=day)
        assert (status, says in page) == (409, True)
    assert Contract.objects.get(pk=contract.pk).guarantee_from is None
    assert send(desk, url, guarantee_from="2027-12-01")[0] == 302
    assert Contract.objects.get(pk=contract.pk).guarantee_from == D(2027, 12, 1)
    assert AuditEntry.objects.get(action="contract.guarantee_added").actor_id == scene.world.account_manager.pk
    assert send(desk, url, guarantee_from="2027-12-02")[0] == 409
    page = desk.get(reverse("desk:contract", args=[contract.pk])).content.decode()
    assert "Guaranteed from 1 Dec 2027 on" in page.replace("\xa0", " ")


def test_a_contract_is_ended_early_with_a_reason(desk: Client, scene: Scene) -> None:
    url = reverse("desk:contract_end", args=[scene.contract.pk])
    status, page = send(desk, url, "preview", last_day="2027-12-31", reason="Insolvency.")
    assert (status, "<ins>31 Dec 2027</ins>" in page, "<ins>no longer</ins>" in page) == (200, True, True)
    assert send(desk, url, last_day="2027-12-31", reason=" ")[0] == 200
    now = agreement_sha256(scene.contract)
    for late in ("2027-11-19", "2029-08-31"):  # yesterday: this morning's failures would leave the contract
        status, page = send(desk, url, last_day=late, reason="Insolvency.", shown=now)
        assert (status, "ends early lies on 2027-11-20 or later, and before 2029-08-31" in page) == (409, True)
    assert scene.contract.years.count() == 3
    url = propose(desk, scene, url, last_day="2027-12-31", reason="Insolvency.")
    assert scene.contract.years.count() == 3
    assert "<ins>31 Dec 2027</ins>" in send(desk, url, "nothing")[1]
    assert send(desk, url, "accept", note="Their letter is here.")[0] == 302
    assert Contract.objects.get(pk=scene.contract.pk).ends_on == D(2028, 1, 1)
    assert scene.contract.years.count() == 2
    assert AuditEntry.objects.get(action="contract.ended_early").data["reason"] == "Insolvency."


def test_fees_are_recorded_for_a_year_and_corrected_with_a_reason_after_its_close(desk: Client, scene: Scene) -> None:
    url = reverse("desk:year_fees", args=[scene.contract.pk, scene.closed_year.pk])
    status, page = send(desk, url, "preview", amount="4800000.50")
    assert (status, "fees US$4,800,000.50" in page) == (200, True)
    assert ContractYear.objects.get(pk=scene.closed_year.pk).fees_minor is None
    assert send(desk, url, amount="4800000.50")[0] == 302
    assert ContractYear.objects.get(pk=scene.closed_year.pk).fees_minor == 480_000_050
    assert 'value="4800000.50"' in desk.get(url).content.decode()
    status, page = send(desk, url, "preview", amount="4800000.50")
    assert "Nothing: it says what is recorded already." in page
    assert "Record the fees</button>" not in page
    status, page = send(desk, url, amount="5000000")
    assert (status, "To correct its fees, say why" in page) == (409, True)
    for amount, says in (("-1", "greater than or equal to 0"), ("1.005", "no more than 2 decimal"), ("NaN", "number")):
        status, page = send(desk, url, amount=amount, reason="Typing.")
        assert (status, says in page) == (200, True)
    assert send(desk, url, amount="5000000", reason="An invoice was late.")[0] == 302
    assert AuditEntry.objects.get(action="year.fees_restated").data["reason"] == "An invoice was late."


URLS = ["desk:terms_new", "desk:guarantee_new", "desk:contract_end"]


def test_agreements_ask_for_the_password_and_are_nothing_for_customers(client: Client, scene: Scene) -> None:
    urls = [NEW, *(reverse(name, args=[scene.contract.pk]) for name in URLS)]
    urls.append(reverse("desk:year_fees", args=[scene.contract.pk, scene.closed_year.pk]))
    client.force_login(scene.world.account_manager)
    for url in urls:
        answer = client.post(url, {"decision": "confirm"})
        assert (answer.status_code, "reauthenticate" in answer["Location"]) == (302, True)
    for person in (scene.world.owner, scene.world.stranger):
        sign_in(client, person)
        assert [client.post(url, {"decision": "confirm"}).status_code for url in urls] == [404] * len(urls)
    sign_in(client, scene.world.account_manager)
    other = scene.world.stranger_contract.years.get()
    assert client.get(reverse("desk:year_fees", args=[scene.contract.pk, other.pk])).status_code == 404


def test_the_pages_take_few_queries(
    desk: Client, scene: Scene, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    pages = [NEW, terms_url(scene), reverse("desk:contract", args=[scene.contract.pk])]
    pages += [reverse("portal:terms", args=[scene.contract.pk])]
    pages += [reverse("desk:year_fees", args=[scene.contract.pk, scene.closed_year.pk])]
    for url in pages:
        with django_assert_max_num_queries(QUERIES_PER_PAGE):
            assert desk.get(url).status_code == 200, url
