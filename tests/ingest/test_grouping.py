"""Which incidents tell of one root event: the rule, whatever the order, and through the API as reports arrive."""

import datetime
import random
import uuid

from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from tests.ingest.conftest import AgentClient
from tests.ingest.reports import DETECTED, after, report
from tests.people import World
from yoco.contracts.models import Contract, GuaranteeTerms
from yoco.guarantee.selectors import year_export, year_report
from yoco.incidents.grouping import Member, group
from yoco.incidents.models import Incident, RootEvent

CONTRACT = uuid.UUID(int=7)
WINDOW = datetime.timedelta(seconds=60)


def member(number: int, second: float, **changes: object) -> Member:
    values: dict[str, object] = {
        "id": uuid.UUID(int=number),
        "kind": "unplanned",
        "cause": "xid:79",
        "node": "a",
        "started_at": DETECTED + datetime.timedelta(seconds=second),
        "named": None,
        "moved_to": None,
        "window": WINDOW,
    }
    return Member(**{**values, **changes})  # type: ignore[arg-type]


def sets(*members: Member) -> set[frozenset[int]]:
    return {frozenset(one.int for one in each.members) for each in group(members, contract_id=CONTRACT)}


def test_one_node_within_the_window_is_one_event() -> None:
    assert sets(member(1, 0), member(2, 60), member(3, 120)) == {frozenset({1, 2, 3})}
    assert sets(member(1, 0), member(2, 61)) == {frozenset({1}), frozenset({2})}
    assert sets(member(1, 0), member(2, 0, node="b")) == {frozenset({1}), frozenset({2})}
    assert sets(member(1, 0, node=""), member(2, 0, node="")) == {frozenset({1}), frozenset({2})}


def test_a_planned_move_is_never_part_of_a_failure() -> None:
    assert sets(member(1, 0, kind="planned"), member(2, 10)) == {frozenset({1}), frozenset({2})}

    name = uuid.uuid4()
    assert sets(member(1, 0, kind="planned", named=name), member(2, 10, named=name, node="b")) == {
        frozenset({1}),
        frozenset({2}),
    }
    # A planned move between two failures does not make them one either.
    assert len(sets(member(1, 0), member(2, 50, kind="planned"), member(3, 100))) == 3


def test_what_was_to_be_prevented_belongs_with_the_failure_of_its_node() -> None:
    assert sets(member(1, 0, kind="preventive"), member(2, 10)) == {frozenset({1, 2})}


def test_the_window_is_the_earlier_ones() -> None:
    wide = datetime.timedelta(seconds=300)
    assert sets(member(1, 0, window=wide), member(2, 200)) == {frozenset({1, 2})}
    assert sets(member(1, 0), member(2, 200, window=wide)) == {frozenset({1}), frozenset({2})}
    assert sets(member(1, 0, window=wide), member(2, 100), member(3, 290)) == {frozenset({1, 2, 3})}


def test_a_name_joins_across_nodes_and_keeps_nothing_apart() -> None:
    one, two = uuid.uuid4(), uuid.uuid4()
    assert sets(member(1, 0, named=one), member(2, 60, named=one, node="b")) == {frozenset({1, 2})}
    assert sets(member(1, 0, named=one), member(2, 10, named=two)) == {frozenset({1, 2})}
    assert sets(member(1, 0, named=one), member(2, 10), member(3, 70)) == {frozenset({1, 2, 3})}


def test_a_name_joins_only_within_the_window_of_the_latest_of_that_name() -> None:
    name, month = uuid.uuid4(), 30 * 86400
    alone = [member(n, n * month, named=name) for n in range(1, 7)]
    assert sets(*alone) == {frozenset({n}) for n in range(1, 7)}
    assert sets(member(1, 0, named=name), member(2, 61, named=name, node="b")) == {frozenset({1}), frozenset({2})}
    chain = [member(n, 60 * n, named=name, node=str(n)) for n in range(1, 4)]
    assert sets(*chain) == {frozenset({1, 2, 3})}


def test_a_persons_decision_stands_above_the_rules() -> None:
    apart = uuid.uuid4()
    assert sets(member(1, 0), member(2, 5, moved_to=apart)) == {frozenset({1}), frozenset({2})}
    assert sets(member(1, 0, moved_to=apart), member(2, 9999, node="z", moved_to=apart)) == {frozenset({1, 2})}


def test_a_cascade_is_named_after_its_root() -> None:
    (cascade,) = group(
        [member(1, 12, cause="sxid:20034"), member(2, 0, cause="xid:79"), member(3, -2, cause="process_exit")],
        contract_id=CONTRACT,
    )
    assert (cascade.cause, cascade.id) == ("xid:79", uuid.uuid5(CONTRACT, str(uuid.UUID(int=3))))
    (cleaned,) = group([member(1, 0, cause="xid:45"), member(2, 3, cause="xid:48")], contract_id=CONTRACT)
    assert cleaned.cause == "xid:48"


NAMES = [None, None, uuid.UUID(int=1), uuid.UUID(int=2)]


@given(
    st.lists(
        st.builds(
            lambda second, node, name, kind, window: (second, node, name, kind, window),
            st.integers(0, 400),
            st.sampled_from(["", "a", "b"]),
            st.sampled_from(NAMES),
            st.sampled_from(["unplanned", "preventive", "planned"]),
            st.sampled_from([30, 60, 150]),
        ),
        max_size=25,
    ),
    st.randoms(use_true_random=False),
)
def test_groups_depend_on_the_set_and_are_the_connected_parts(
    rows: list[tuple[int, str, uuid.UUID | None, str, int]], shuffler: random.Random
) -> None:
    members = [
        member(number, second, node=node, named=name, kind=kind, window=datetime.timedelta(seconds=window))
        for number, (second, node, name, kind, window) in enumerate(rows, start=1)
    ]
    found = group(members, contract_id=CONTRACT)
    shuffled = list(members)
    shuffler.shuffle(shuffled)
    assert {one.id: one for one in group(shuffled, contract_id=CONTRACT)} == {one.id: one for one in found}

    # The definition again, by brute force: pairs that belong together, closed transitively.
    part = {one.id: {one.id} for one in members}
    for one in members:
        for other in members:
            if (one.started_at, one.id) >= (other.started_at, other.id):
                continue
            within = other.started_at - one.started_at <= one.window
            alike = (one.kind == "planned") == (other.kind == "planned")
            same_name = one.named is not None and one.named == other.named
            same_node = one.node != "" and one.node == other.node
            if within and alike and (same_name or same_node) and part[one.id] is not part[other.id]:
                part[one.id] |= part[other.id]
                for each in part[other.id]:
                    part[each] = part[one.id]
    assert {frozenset(one.members) for one in found} == {frozenset(each) for each in part.values()}


def test_two_ranks_of_one_node_are_one_root_event_with_both_kept(agent: AgentClient) -> None:
    agent.reports(report(seq=1, where__rank=1), report(seq=2, where__rank=2, trigger__xid=45))
    assert Incident.objects.count() == 2
    root = RootEvent.objects.get()
    assert (root.cause, root.incidents.count()) == ("xid:79", 2)


def test_a_late_report_joins_two_root_events_and_the_rows_agree(agent: AgentClient) -> None:
    def at(second: float, seq: int) -> dict[str, object]:
        return report(seq=seq, phases={"started_at": after(second)}, sent_at=after(second + 1), resolution="abandoned")

    agent.reports(at(0, 1), at(100, 2))
    assert RootEvent.objects.count() == 2
    agent.reports(at(50, 3))
    root = RootEvent.objects.exclude(incidents=None).distinct().get()
    assert root.incidents.count() == 3
    assert (root.first_at, root.last_at) == (DETECTED, DETECTED + datetime.timedelta(seconds=100))


def test_an_incident_told_again_without_news_follows_its_root_event(agent: AgentClient, world: World) -> None:
    """Told in one request with another workload's failure that began the event; where events count, that is one."""
    october = datetime.date(2026, 10, 1)
    GuaranteeTerms.objects.create(contract=world.contract, version=2, effective_on=october, unit="root_event")
    Contract.objects.filter(pk=world.contract.pk).update(guarantee_from=october)
    later = report(seq=1)
    first = report(seq=2, workload__run_id="other", phases__started_at=after(-25), where__rank=7, trigger__xid=45)
    agent.reports(later)
    agent.reports({**later, "id": str(uuid.uuid4()), "type": "incident.amended", "seq": 3}, first)
    assert RootEvent.objects.exclude(incidents=None).distinct().count() == 1
    counted = year_report(year=world.year)
    assert (counted.counted, counted.resolved) == (1, 1)


def test_any_order_of_arrival_gives_the_same_root_events(agent: AgentClient) -> None:
    shuffler, name = random.Random(3), str(uuid.uuid4())
    batch = [
        report(
            seq=seq,
            phases={"started_at": after(second)},
            sent_at=after(second + 1),
            resolution="abandoned",
            where__node=node,
            root_event_id=named,
        )
        for seq, (second, node, named) in enumerate(
            [
                (-3000, "a", None),
                (-2950, "a", name),
                (-2900, "a", None),
                (-2890, "b", name),
                (-2840, "b", None),
                (-1000, "a", name),
                (-500, "c", name),
                (-100, "a", None),
                (-30, "a", None),
                (-60, "a", None),
            ],
            start=1,
        )
    ]
    seen = []
    for _ in range(4):
        shuffler.shuffle(batch)
        with transaction.atomic():
            for body in batch:
                assert agent.statuses(body) == ["created"]
            seen.append(sorted(Incident.objects.values_list("public_id", "root_event__id", "root_event__cause")))
            assert len({root for _, root, _ in seen[-1]}) == 4
            first = RootEvent.objects.exclude(incidents=None).order_by("first_at").first()
            assert first == RootEvent.objects.get(named_id=name)
            transaction.set_rollback(True)
    assert all(one == seen[0] for one in seen)


def test_a_name_that_comes_again_after_the_window_is_another_root_event(agent: AgentClient) -> None:
    name, other = str(uuid.uuid4()), str(uuid.UUID(int=2**128 - 1))

    def at(second: float, seq: int, named: str | None) -> dict[str, object]:
        return report(
            seq=seq,
            phases={"started_at": after(second)},
            sent_at=after(second + 1),
            resolution="abandoned",
            root_event_id=named,
        )

    def names() -> list[str | None]:
        found = RootEvent.objects.exclude(incidents=None).distinct().order_by("first_at")
        return [str(root.named_id) if root.named_id else None for root in found]

    assert agent.statuses(at(-1000, 1, name)) == ["created"]
    assert agent.statuses(at(-3000, 2, name)) == ["created"]
    assert names() == [name, None]  # The earlier one takes the name over.
    assert agent.statuses(at(-960, 3, None)) == ["created"]  # Regroups the later one while the bearer is out of sight.
    assert names() == [name, None]
    # A root event with two names bears the lesser of them.
    assert agent.statuses(at(-920, 4, other), at(-100, 5, other)) == ["created", "created"]
    assert names() == [name, None, other]


def test_naming_one_nodes_failures_apart_does_not_count_them_apart(agent: AgentClient) -> None:
    bodies = [
        report(seq=seq, where__rank=seq, root_event_id=str(uuid.uuid4()), kind=kind, phases__started_at=after(-seq))
        for seq, kind in enumerate(["unplanned", "preventive", "unplanned"], start=1)
    ]
    agent.reports(*bodies)
    assert RootEvent.objects.exclude(incidents=None).distinct().count() == 1


def test_the_window_is_that_of_the_contract_year(agent: AgentClient, world: World) -> None:
    """A version that takes effect during a year governs from the next year on, whatever the day says."""
    wider = {"effective_on": datetime.date(2026, 10, 1), "root_event_window_s": 3600}
    GuaranteeTerms.objects.create(contract=world.contract, version=2, **wider)
    for second in (0, 200):
        body = report(seq=1 + second, phases={"started_at": after(second)}, sent_at=after(300), resolution="abandoned")
        assert agent.statuses(body) == ["created"]
    assert RootEvent.objects.exclude(incidents=None).distinct().count() == 2
    terms = year_export(year=world.year)["years"][0]["terms"]
    assert terms["root_event_window_s"] == 60
