"""The desk's queues: what waits in each, since when, where it is decided, page by page; and the portfolio by risk."""

import datetime
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from tests.portal.scene import NOW, Scene
from tests.portal.test_access import some_dispute, some_exclusion, some_proposal, some_regrouping
from tests.portal.test_pages import QUERIES_PER_PAGE, text_of
from yoco.contracts.models import ContractYear, YearState
from yoco.contracts.services import contract_create
from yoco.credits.models import Credit
from yoco.credits.services import credit_approve, credit_issue
from yoco.desk import queues, selectors
from yoco.guarantee.models import Outcome, Placement, RestatementDue
from yoco.incidents.models import Comment, Incident
from yoco.incidents.review import comment_write


def issue(scene: Scene) -> None:
    credit_issue(credit_id=scene.credit.pk, actor=scene.world.account_manager, reason="Checked.")


def question(scene: Scene) -> None:
    credit_approve(credit_id=scene.credit.pk, actor=scene.world.second_account_manager)
    Credit.objects.filter(pk=scene.credit.pk).update(
        review_since=NOW, review_reason="x", review_statement=scene.credit.statement
    )


# What fills each queue, a word of its line, and where the line leads.
FILLED: dict[str, tuple[Callable[[Scene], object], str, Callable[[Scene], str]]] = {
    "credits-to-issue": (lambda scene: None, "Year 1", lambda scene: reverse("desk:credit", args=[scene.credit.pk])),
    "credits-to-approve": (issue, "issued by Amanda", lambda scene: reverse("desk:credit", args=[scene.credit.pk])),
    "credits-to-settle": (question, "Year 1", lambda scene: reverse("desk:credit", args=[scene.credit.pk])),
    "proposals": (
        some_proposal,
        "New version of the terms",
        lambda scene: reverse("desk:proposal", args=[some_proposal(scene).pk]),
    ),
    "disputes": (some_dispute, "Olivia", lambda scene: reverse("desk:dispute", args=[some_dispute(scene).pk])),
    "exclusions": (
        some_exclusion,
        "User error",
        lambda scene: reverse("desk:exclusion", args=[some_exclusion(scene).pk]),
    ),
    "regroupings": (
        some_regrouping,
        "Amanda",
        lambda scene: reverse("desk:regrouping", args=[some_regrouping(scene).pk]),
    ),
    "comments": (
        lambda scene: comment_write(incident=scene.open, text="Why?", actor=scene.world.owner),
        "Olivia",
        lambda scene: incident_url(scene) + f"#comment-{Comment.objects.get().pk}",
    ),
    "unaccounted": (
        lambda scene: Placement.objects.filter(pk=scene.open.pk).update(outcome=Outcome.UNACCOUNTED, rule="silent"),
        "llm-7b pre-training",
        lambda scene: incident_url(scene),
    ),
    "years-to-close": (
        lambda scene: ContractYear.objects.filter(pk=scene.running_year.pk).update(state=YearState.CLOSING),
        "Year 2 Acme · ended 31 Aug 2028",
        lambda scene: reverse("portal:year", args=[scene.contract.pk, scene.running_year.pk]),
    ),
    "restatements-due": (
        lambda scene: RestatementDue.objects.create(year=scene.closed_year, reasons=["late_report"]),
        "A report arrived after the year had closed.",
        lambda scene: reverse("desk:restate", args=[scene.contract.pk, scene.closed_year.pk]),
    ),
}


def incident_url(scene: Scene) -> str:
    return reverse("portal:incident", args=[scene.contract.pk, scene.open.public_id])


@pytest.fixture
def desk(client: Client, scene: Scene) -> Client:
    client.force_login(scene.world.account_manager)
    return client


def test_every_queue_counts_lists_and_leads_to_what_waits(
    desk: Client, scene: Scene, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    assert FILLED.keys() == queues.QUEUES.keys()
    for name, queue in queues.QUEUES.items():
        if name not in ("credits-to-issue", "years-to-close"):
            assert str(queue.empty) in text_of(desk, reverse("desk:queue", args=[name])), name
    for name, (fill, word, url) in FILLED.items():
        title = str(queues.QUEUES[name].title)
        fill(scene)
        assert f"{title} 1" in text_of(desk, reverse("desk:portfolio")), name
        with django_assert_max_num_queries(QUERIES_PER_PAGE):
            page = desk.get(reverse("desk:queue", args=[name])).content.decode()
        assert f'href="{url(scene)}"' in page
        assert word in text_of(desk, reverse("desk:queue", args=[name])), name
        assert desk.get(url(scene)).status_code in (200, 302), name
    with django_assert_max_num_queries(QUERIES_PER_PAGE):
        desk.get(reverse("desk:portfolio"))
    assert desk.get("/desk/queues/everything/").status_code == 404


def test_a_queue_is_paged_by_key_without_gap_or_repetition(
    desk: Client, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "PAGE_SIZE", 2)
    incidents = Incident.objects.filter(contract=scene.contract).order_by("pk")[:5]
    Comment.objects.bulk_create(  # at one instant: the key alone tells them apart
        Comment(incident=incident, text="Why?", by=scene.world.owner, by_desk=False, at=NOW) for incident in incidents
    )
    queue, after, seen = queues.QUEUES["comments"], "", []
    for _ in range(3):
        page = queues.queue_page(queue, after=after)
        seen += [line.url for line, _since in page.lines]
        after = page.after
    assert (len(seen), len(set(seen)), after) == (5, 5, "")
    first = text_of(desk, reverse("desk:queue", args=["comments"]))
    assert "Further ones" in first
    assert "From the first" not in first
    for nonsense in ("x", "2027-01-01~1", "2027-01-01T00:00:00+00:00~x", "~", "2027-11-20T10:30:00+00:00~"):
        page = queues.queue_page(queue, after=nonsense)
        assert len(page.lines) == 2, nonsense


def test_the_portfolio_pages_by_risk_and_reaches_every_contract(
    desk: Client, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract_create(
        organisation=scene.world.organisation,
        number="ACME-9",
        name="To come",
        currency="EUR",
        time_zone="UTC",
        starts_on=datetime.date(2029, 1, 1),
        ends_on=datetime.date(2030, 1, 1),
        actor=None,
    )
    page = text_of(desk, reverse("desk:portfolio"))
    assert page.index("ACME-7") < page.index("ACME-9")
    assert "ACME-9 Acme No year runs now" in page
    monkeypatch.setattr(selectors, "STANDINGS_SHOWN", 1)
    found, after = [], ""
    for _ in range(4):
        stretch = selectors.standings(at=NOW, after=after)
        found += [row.contract.number for row in stretch.rows]
        after = stretch.after
        if not after:
            break
    assert found[0] == "ACME-7"
    assert sorted(found) == ["ACME-1", "ACME-7", "ACME-9", "OTHER-1"]
    assert "Further contracts" in text_of(desk, reverse("desk:portfolio"))
