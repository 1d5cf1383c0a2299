"""What the customer's pages say, against the rows they were made from."""

import csv
import datetime
import io
import json
import re
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from tests.credits.test_reading import recompute
from tests.portal.scene import NOW, Scene, issue_and_approve
from yoco.credits.selectors import credit_balance
from yoco.credits.services import credit_apply
from yoco.guarantee.models import Placement, Statement
from yoco.incidents.models import Incident

QUERIES_PER_PAGE = 12


def text_of(client: Client, url: str, language: str = "en") -> str:
    """The page's text without markup, spaces folded."""
    response = client.get(url, headers={"accept-language": language})
    assert response.status_code == 200, response.status_code
    body = re.sub(r"<(script|style)\b.*?</\1>", "", response.content.decode(), flags=re.S)
    plain = re.sub(r"<[^>]+>", " ", body).replace("&#x27;", "'").replace("\xa0", " ")
    return re.sub(r"\s+", " ", plain)


@pytest.fixture
def owner(client: Client, scene: Scene) -> Client:
    client.force_login(scene.world.owner)
    return client


def year_url(scene: Scene, year: str = "closed_year") -> str:
    return reverse("portal:year", args=[scene.contract.pk, getattr(scene, year).pk])


def test_a_closed_year_shows_its_statement_word_for_word(owner: Client, scene: Scene) -> None:
    statement = Statement.objects.get(year=scene.closed_year)
    page = text_of(owner, year_url(scene))
    assert "The commitment was not met." in page
    assert f"80.00 % {statement.resolved} of {statement.counted} failures resolved without loss (16/20)" in page
    assert statement.sha256 in page
    assert "Revision 1" in page
    assert "2 more than allowed" in page
    assert "Synthetic" in page


def test_an_open_year_is_provisional_and_names_what_is_pending(owner: Client, scene: Scene) -> None:
    page = text_of(owner, year_url(scene, "running_year"))
    assert "12 of 13 failures resolved without loss (12/13)" in page
    assert "92.30 %" in page  # floored, never rounded up
    assert "Undecided" in page
    assert "from 85.71 % to 92.85 %" in page
    assert "The figures are provisional." in page
    assert "Synthetic" not in page
    days = (scene.running_year.ends_on - NOW.date()).days
    assert f"Days left {days} until midnight in Europe/Madrid" in page


def test_a_share_below_the_mark_is_never_shown_on_it(owner: Client, scene: Scene) -> None:
    drawn = owner.get(year_url(scene)).content.decode()
    assert 'class="fill" x="0" y="24" width="80.000%"' in drawn
    assert 'x1="90.000%"' in drawn


def test_it_speaks_spanish(owner: Client, scene: Scene) -> None:
    page = text_of(owner, year_url(scene), "es")
    assert "El compromiso no se cumplió." in page
    assert "16 de 20 fallos resueltos sin pérdida" in page
    assert "80,00 %" in page


def test_the_language_of_the_person_wins_over_the_browser(client: Client, scene: Scene) -> None:
    scene.world.owner.__class__.objects.filter(pk=scene.world.owner.pk).update(language="es")
    client.force_login(scene.world.owner)
    assert "Veredicto" in text_of(client, year_url(scene), "en")


def test_times_are_in_the_zone_of_the_reader(client: Client, scene: Scene) -> None:
    scene.world.owner.__class__.objects.filter(pk=scene.world.owner.pk).update(time_zone="Asia/Tokyo")
    client.force_login(scene.world.owner)
    url = reverse("portal:incident", args=[scene.contract.pk, scene.without_loss.public_id])
    started = scene.without_loss.started_at
    page = text_of(client, url)
    assert f"{started + datetime.timedelta(hours=9):%-d Sept %Y, %H:%M}" in page
    assert f"{started + datetime.timedelta(hours=2):%H:%M:%S} (Europe/Madrid)" in page


def test_an_incident_shows_each_condition_with_its_evidence(owner: Client, scene: Scene) -> None:
    page = text_of(owner, reverse("portal:incident", args=[scene.contract.pk, scene.without_loss.public_id]))
    assert "All four conditions are met by evidence." in page
    assert "4 of 4 met" in page
    assert "without_loss" in page
    assert "Digest that arrived 5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f" in page
    assert "Last committed step 1,200 First step afterwards 1,201" in page
    assert "2 min 51 s" in page


def test_an_incident_that_was_rolled_back_says_why_it_counts_against_us(owner: Client, scene: Scene) -> None:
    page = text_of(owner, reverse("portal:incident", args=[scene.contract.pk, scene.rolled_back.public_id]))
    assert "Not resolved without loss" in page
    assert "0 of 4 met" in page
    assert "Source of the state Storage" in page
    assert "Computing lost steps again" in page


def test_the_sums_of_waste_on_an_incident_are_those_of_its_placement(owner: Client, scene: Scene) -> None:
    placement = Placement.objects.get(incident=scene.without_loss)
    page = text_of(owner, reverse("portal:incident", args=[scene.contract.pk, scene.without_loss.public_id]))
    hours = f"{placement.waste_actual_ms / 3_600_000:,.3f}"
    assert f"Sum {hours} {placement.waste_counterfactual_ms / 3_600_000:,.3f}" in page


def test_an_open_incident_has_no_figures_yet(owner: Client, scene: Scene) -> None:
    page = text_of(owner, reverse("portal:incident", args=[scene.contract.pk, scene.open.public_id]))
    assert "Pending" in page
    assert "Not over yet." in page
    assert "not reported" in page


def test_the_raw_report_is_shown_unabridged(owner: Client, scene: Scene) -> None:
    page = owner.get(reverse("portal:incident", args=[scene.contract.pk, scene.without_loss.public_id]))
    assert "&quot;samples_per_step&quot;: 64" in page.content.decode()


def test_the_list_filters_by_outcome_and_kind(owner: Client, scene: Scene) -> None:
    url = reverse("portal:incidents", args=[scene.contract.pk, scene.closed_year.pk])
    placements = Placement.objects.filter(year=scene.closed_year)
    for query, expected in (
        ({}, placements.count()),
        ({"outcome": "not_resolved"}, placements.filter(outcome="not_resolved").count()),
        ({"kind": "preventive"}, placements.filter(incident__kind="preventive").count()),
        ({"kind": "planned", "outcome": "resolved"}, 0),
        ({"outcome": "no such outcome"}, placements.count()),
    ):
        rows = owner.get(url, query).content.decode().count('<th scope="row"')
        assert rows == expected, query


def test_the_list_as_a_file_is_what_the_filter_leaves(owner: Client, scene: Scene, monkeypatch) -> None:
    """All of it, not only the page that is shown."""
    monkeypatch.setattr("yoco.portal.selectors.PAGE_SIZE", 2)
    year = scene.running_year
    place = [scene.contract.pk, year.pk]
    incidents = list(Incident.objects.filter(contract=scene.contract, started_at__gte=year.starts_at))
    incidents.sort(key=lambda row: (row.started_at, row.pk))
    first = incidents[0]
    first.node = "=gpu-7"
    first.save(update_fields=["node"])

    def day(row: Incident) -> str:
        return row.started_at.astimezone(ZoneInfo(scene.contract.time_zone)).date().isoformat()

    for query, expected in (
        ({}, incidents),
        ({"outcome": "resolved"}, [row for row in incidents if row.placement.outcome == "resolved"]),
        ({"where": "GPU-7"}, [first]),
        ({"where": first.run.run_id[1:]}, [row for row in incidents if row.run == first.run]),
        ({"since": day(first), "until": day(first)}, [row for row in incidents if day(row) == day(first)]),
        ({"since": "2999-12-31", "until": "9999-12-31"}, []),
        ({"since": "never", "outcome": "nothing"}, incidents),
    ):
        assert owner.get(reverse("portal:incidents", args=place), query).status_code == 200
        files = {
            kind: b"".join(owner.get(reverse("portal:incident_file", args=[*place, kind]), query)).decode()
            for kind in ("csv", "json")
        }
        lines = list(csv.DictReader(io.StringIO(files["csv"])))
        ids = [str(row.public_id) for row in expected]
        assert [line["incident_id"] for line in lines] == ids, query
        assert [row["incident_id"] for row in json.loads(files["json"])["incidents"]] == ids, query
        assert all(line["node"] != "=gpu-7" for line in lines), "a spreadsheet would run it"


@pytest.mark.parametrize("name", ["closed_year", "running_year"])
def test_each_number_of_a_year_opens_what_it_was_computed_from(owner: Client, scene: Scene, name: str) -> None:
    """Incidents that are one failure count once, and by the kind that the evidence allows."""
    year = getattr(scene, name)
    if year.state != "closed":  # of a closed year the page says what was frozen
        one, *_, twin = Placement.objects.filter(year=year, lead=True, outcome="resolved")
        Placement.objects.filter(pk=twin.pk).update(lead=False, unit_key=one.unit_key)
        Incident.objects.filter(pk=one.pk).update(kind="planned")
    page = owner.get(year_url(scene, name)).content.decode()
    links = re.findall(r'<a href="[^"?]*/incidents/\?([^"]+)">([\d,]+)(?:</a>| of ([\d,]+))', page)
    assert len(links) >= 10
    for query, first, of in links:
        at = reverse("portal:incident_file", args=[scene.contract.pk, year.pk, "json"])
        rows = json.loads(b"".join(owner.get(f"{at}?{query.replace('&amp;', '&')}")))["incidents"]
        assert len(rows) == int(of or first), query
        if kind := re.search("kind=([a-z]+)", query):
            assert {row["kind"] for row in rows} <= {kind[1]}


def test_the_list_turns_pages_both_ways_and_shows_each_incident_once(owner: Client, scene: Scene, monkeypatch) -> None:
    monkeypatch.setattr("yoco.portal.selectors.PAGE_SIZE", 6)
    url = reverse("portal:incidents", args=[scene.contract.pk, scene.running_year.pk])
    ids: list[str] = []
    page = owner.get(url)
    pages = [url]
    while True:
        ids += re.findall(r'incidents/([0-9a-f-]{36})/"><time', page.content.decode())
        older = re.search(r'rel="next" href="([^"]+)"', page.content.decode())
        if older is None:
            break
        pages.append(url + older[1].replace("&amp;", "&"))
        page = owner.get(pages[-1])
    expected = Incident.objects.filter(contract=scene.contract, started_at__gte=scene.running_year.starts_at)
    assert ids == [str(row.public_id) for row in expected.order_by("-started_at", "-id")]
    newer = re.search(r'rel="prev" href="([^"]+)"', page.content.decode())
    assert newer is not None
    back = owner.get(url + newer[1]).content.decode()
    assert re.findall(r'incidents/([0-9a-f-]{36})/"><time', back) == ids[6:12]


def test_a_cursor_of_another_tenant_is_not_found(owner: Client, scene: Scene) -> None:
    url = reverse("portal:incidents", args=[scene.contract.pk, scene.running_year.pk])
    assert owner.get(url, {"older_than": "not-an-id"}).status_code == 404
    assert owner.get(url, {"older_than": str(scene.world.contract.pk)}).status_code == 404


def test_the_statement_of_account_follows_the_ledger(owner: Client, scene: Scene) -> None:
    url = reverse("portal:credits", args=[scene.contract.pk])
    assert "with the next order" in text_of(owner, url)
    issue_and_approve(scene)
    credit_apply(order_id=scene.order.pk, actor=scene.world.account_manager)
    page = text_of(owner, url)
    assert credit_balance(credit=scene.credit).applied == 120_000_000
    assert "Applied to an order R-2027 -US$1,200,000.00 US$0.00" in page
    ledger = owner.get(reverse("portal:ledger", args=[scene.contract.pk])).json()
    head = recompute(ledger)
    assert (head, head in page) == (ledger["head"], True), "what the customer keeps is what the chain ends with"
    rows = owner.get(reverse("portal:credits_csv", args=[scene.contract.pk])).content.decode().splitlines()
    assert [row.split(",")[1] for row in rows] == ["kind", "opening", "fix", "apply", "closing"]
    assert ",R-2027,-1200000.00,0.00,USD," in rows[3]

    contract = scene.contract
    before = {"since": contract.starts_on.isoformat(), "until": contract.starts_on.isoformat()}
    page = text_of(owner, f"{url}?{urlencode(before)}")
    assert "R-2027" not in page.partition("Statement of account")[2], "nothing moved on that day"
    rows = owner.get(reverse("portal:credits_csv", args=[contract.pk]), before).content.decode().splitlines()
    assert [row.split(",")[1] for row in rows] == ["kind", "opening", "closing"]
    page = text_of(owner, f"{url}?since=2026-05-02&until=2026-05-01")
    assert "The end of the statement lies before its start." in page
    assert "Applied to an order R-2027" in page, "all movements instead"
    assert "Enter a valid date" in text_of(owner, f"{url}?until=31/31")
    assert owner.get(url, {"since": "9999-12-31", "until": "9999-12-31"}).status_code == 200


def test_empty_pages_say_what_to_do(client: Client, scene: Scene) -> None:
    client.force_login(scene.world.owner)
    contract = scene.world.contract
    assert "No incident so far" in text_of(client, reverse("portal:incidents", args=[contract.pk, scene.world.year.pk]))
    assert "you need not claim it" in text_of(client, reverse("portal:credits", args=[contract.pk]))
    # A year without a counted failure is met, and shows no percentage.
    page = text_of(client, reverse("portal:year", args=[contract.pk, scene.world.year.pk]))
    assert "No failure" in page
    assert "100.00 %" not in page


def test_a_page_that_does_not_exist_helps_in_both_languages(client: Client, scene: Scene) -> None:
    client.force_login(scene.world.owner)
    for language, words in (("en", "There is nothing here"), ("es", "Aquí no hay nada")):
        response = client.get("/no/such/page/", headers={"accept-language": language})
        assert response.status_code == 404
        assert words in response.content.decode()


@pytest.mark.parametrize("page", ["year", "incidents", "incident", "credits", "home", "settings"])
def test_a_page_takes_few_queries(
    owner: Client, scene: Scene, page: str, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    arguments = {
        "year": [scene.contract.pk, scene.closed_year.pk],
        "incidents": [scene.contract.pk, scene.running_year.pk],
        "incident": [scene.contract.pk, scene.rolled_back.public_id],
        "credits": [scene.contract.pk],
    }
    url = reverse(f"portal:{page}", args=arguments.get(page, []))
    with django_assert_max_num_queries(QUERIES_PER_PAGE):
        assert owner.get(url).status_code == 200
    if page == "year":
        with django_assert_max_num_queries(QUERIES_PER_PAGE):
            assert owner.get(year_url(scene, "running_year")).status_code == 200


def test_the_interval_of_a_year_is_by_the_method_that_is_asked_for(client: Client, scene: Scene) -> None:
    client.force_login(scene.world.owner)
    url = reverse("portal:year", args=[scene.contract.pk, scene.closed_year.pk])
    said = {method: text_of(client, f"{url}?interval={method}") for method in ("", "jeffreys", "clopper_pearson", "no")}
    assert "91.94 % Wilson" in said[""]
    assert said["no"] == said[""]
    assert "92.85 % Jeffreys" in said["jeffreys"]
    assert "94.27 % Clopper-Pearson" in said["clopper_pearson"]
