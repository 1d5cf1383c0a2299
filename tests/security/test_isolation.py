"""Nobody reads or changes another tenant's objects: every route, every method, everyone who might try.

The routes come from the URL resolver, so that a new one is asked for here before anybody else asks.
"""

from typing import Any

from tests.ingest.reports import report
from tests.portal.scene import Scene
from tests.security.asking import (
    MARKERS,
    Asker,
    Route,
    Rows,
    askers,
    form_body,
    methods_of,
    routes,
    rows_of_all_tables,
)
from yoco.accounts.models import Scope
from yoco.accounts.services import agent_key_create

HIDDEN = {404, 405}


def wrong(asker: Asker, route: Route, answer: Any) -> str:
    """What is wrong with this answer to an outsider; empty if nothing is."""
    status = answer.status_code
    leaked = [marker for marker in MARKERS if marker in answer.getvalue() or marker in str(answer.headers).encode()]
    if leaked:
        return f"tells {leaked}"
    if status >= 500:
        return f"answers {status}"
    if not route.objects:
        return ""
    if asker.person:
        return "" if status in HIDDEN else f"answers {status}"
    if route.api:  # a key that ends is 401, one without the scope 403
        return "" if status in HIDDEN | {401, 403} else f"answers {status}"
    to_sign_in = status == 302 and answer["Location"].startswith("/accounts/login/?next=")
    return "" if to_sign_in or status == 405 else f"answers {status}"


def changed(before: Rows, after: Rows, asker: Asker) -> list[Any]:
    """The rows that are other than they were, except for the asker's own account or key."""
    mine = {row.pk for row in (asker.person, asker.key_row) if row}
    return [key for key, row in before.items() if after.get(key) != row and key[1] not in mine]


def test_another_tenants_objects_do_not_exist_and_nothing_changes(scene: Scene) -> None:
    everything = routes(scene)
    methods = methods_of(scene, everything)
    body = form_body(scene)
    found: list[str] = []
    everyone = askers(scene)
    before = rows_of_all_tables()
    for asker in everyone:
        for route in everything:
            for path in [route.path, *route.with_own(asker.own)]:
                for method in methods[route.name]:
                    answer, writes = asker.ask(method, path, body)
                    if reason := wrong(asker, route, answer):
                        found.append(f"{asker.name}: {method} {route.name} {path} {reason}")
                    if writes and route.objects:
                        found.append(f"{asker.name}: {method} {route.name} {path} writes {writes}")
        after = rows_of_all_tables()
        found += [f"{asker.name}: {key} has changed" for key in changed(before, after, asker)]
        before = after
    assert not found, "\n".join(found)


def test_a_viewer_writes_nothing(scene: Scene) -> None:
    everything = routes(scene)
    methods = methods_of(scene, everything)
    viewer = Asker("viewer", person=scene.world.viewer, confirmed=True)
    body = form_body(scene)
    found: list[str] = []
    before = rows_of_all_tables()
    for route in everything:
        for method in methods[route.name][1:]:
            answer, writes = viewer.ask(method, route.path, body)
            if route.objects and (answer.status_code not in HIDDEN | {403} or writes):
                found.append(f"{method} {route.name} answers {answer.status_code}, writes {writes}")
    assert not found, "\n".join(found)
    assert not changed(before, rows_of_all_tables(), viewer)


def test_the_same_requests_do_write_for_those_who_may(scene: Scene) -> None:
    """Otherwise the two tests above would prove nothing."""
    owner = Asker("owner", person=scene.world.owner, confirmed=True)
    body = form_body(scene)
    silent = []
    for route in routes(scene):
        if route.name.startswith("portal:") and route.objects:
            answer, writes = owner.ask("post", route.path, body)
            if answer.status_code != 405 and not writes:
                silent.append(f"{route.name} {answer.status_code}")
    assert not silent


def test_a_read_key_opens_what_foreign_keys_do_not(scene: Scene) -> None:
    key, text = agent_key_create(organisation=scene.world.organisation, scope=Scope.READ, name="own", actor=None)
    own = Asker("own read key", key=text, key_row=key)
    api = [route for route in routes(scene) if route.api and route.objects]
    assert len(api) >= 7
    assert {route.name: own.ask("get", route.path)[0].status_code for route in api} == {r.name: 200 for r in api}
    told = {
        route.name for route in api if any(marker in own.ask("get", route.path)[0].getvalue() for marker in MARKERS)
    }
    assert {"api-contract-detail", "api-incident-detail", "api-contract-year-export"} <= told


def test_lists_ignore_a_filter_for_somebody_elses_contract(scene: Scene) -> None:
    lists = [route for route in routes(scene) if route.name.endswith("-list")]
    for asker in askers(scene)[1:6]:
        for route in lists:
            for query in ({"contract": scene.contract.pk}, {"year": scene.closed_year.pk}, {"number": "ACME-7"}):
                answer, _ = asker.ask("get", route.path, query)
                assert answer.status_code in (200, 403), (asker.name, route.name)
                assert str(scene.contract.pk) not in answer.content.decode()


def test_a_foreign_key_reports_into_its_own_contract_only(scene: Scene) -> None:
    """Even about an incident whose id is Acme's."""
    foreign = next(asker for asker in askers(scene) if asker.name.startswith("ingest key"))
    before = rows_of_all_tables()
    told = report(incident_id=str(scene.without_loss.public_id))
    answer, writes = foreign.ask("post", "/api/v1/reports", told, json=True)
    assert answer.json()["results"][0]["status"] == "created"
    assert writes
    assert not changed(before, rows_of_all_tables(), foreign)
    own = scene.world.stranger_contract.incidents.get()
    assert own.public_id == scene.without_loss.public_id
