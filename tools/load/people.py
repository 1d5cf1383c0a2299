"""People before their browsers: customers who read, and two account managers who issue, approve and apply credits.

Everything is done as a browser does it: pages, links, forms with their hidden fields, cookies.
"""

from __future__ import annotations

import random
import re
import threading
import time
from html.parser import HTMLParser

import httpx

from tools.load.measuring import Log

UUID = "[0-9a-f-]{36}"
CREDIT = re.compile(rf"/desk/credits/{UUID}/")
INCIDENT = re.compile(rf"/contracts/{UUID}/incidents/{UUID}/(?=[\"#])")
YEAR = re.compile(rf"/contracts/{UUID}/years/{UUID}/(?=[\"#])")
STATEMENT = re.compile(rf"/contracts/{UUID}/years/{UUID}/statements/[0-9]+/(?=[\"#])")
CONTRACT_OF = re.compile(rf"/contracts/{UUID}/")


class Forms(HTMLParser):
    """The forms of a page: for each its action and the values that it would send as it stands."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("name")
        if tag == "form":
            self.found.append((given.get("action") or "", {}))
        elif tag in ("input", "textarea") and name and self.found:
            self.found[-1][1][name] = given.get("value") or ""

    def with_field(self, name: str) -> tuple[str, dict[str, str]]:
        return next(form for form in self.found if name in form[1])


class Failed(Exception):
    """The page did not come, or not as it should. It is asked for again later."""


class Refused(Failed):
    """The service has understood and does not do it."""


class Person:
    """Somebody with a password and a browser."""

    def __init__(self, url: str, email: str, password: str, log: Log) -> None:
        self.email, self.password, self._log = email, password, log
        self._http = httpx.Client(base_url=url, follow_redirects=True, timeout=60)

    def open(self, kind: str, path: str) -> str:
        """The page at `path`. Signs in, or gives the password again, where that is asked for. Raises Failed."""
        answer = self._ask(kind, "GET", path)
        for wanted in ("login", "password"):  # first the one, then perhaps the other
            if answer.url.path.startswith("/accounts/") and f'name="{wanted}"' in answer.text:
                action, fields = Forms(answer.text).with_field(wanted)
                given = fields | {"login": self.email, "password": self.password}
                answer = self._ask("sign in", "POST", action, given)
        if answer.url.path != path:
            raise Failed(f"{self.email} came to {answer.url.path} instead of {path}")
        return answer.text

    def send(self, kind: str, path: str, form: tuple[str, dict[str, str]], **given: str) -> None:
        """Sends a form, and the same again until it is answered, as a person presses the button.

        Raises Refused, also where the password is asked for once more before anything is done.
        """
        action, fields = form
        while True:
            try:
                answer = self._ask(kind, "POST", action or path, fields | given)
            except Refused:
                raise
            except Failed:
                time.sleep(1)
            else:
                if answer.url.path.startswith("/accounts/"):
                    raise Refused(f"{path} asks for the password again")
                return

    def fetch(self, kind: str, path: str) -> bytes:
        """A document. Raises Failed."""
        return self._ask(kind, "GET", path).content

    def _ask(self, kind: str, method: str, path: str, fields: dict[str, str] | None = None) -> httpx.Response:
        with self._log.asking(kind) as errors:
            try:
                answer = self._http.request(method, path, data=fields)
            except httpx.HTTPError as error:
                errors.append(type(error).__name__)
                raise Failed(str(error)) from None
            if answer.status_code >= 400:
                errors.append(str(answer.status_code))
                raise (Refused if answer.status_code < 500 else Failed)(f"{answer.status_code} {path}")
        return answer

    def close(self) -> None:
        self._http.close()


def read(person: Person, stop: threading.Event, think_s: float) -> None:
    """Goes from page to page of what the person may see, until told to stop."""
    dice = random.Random(person.email)  # noqa: S311 (traffic, reproducible)
    home: list[str] = []
    while not stop.wait(dice.uniform(0.5, 1.5) * think_s):
        try:
            home = YEAR.findall(person.open("portal: home", "/")) or home
            if home:
                _wander(person, dice, dice.choice(home), stop, think_s)
        except Failed:
            continue


def _wander(person: Person, dice: random.Random, year: str, stop: threading.Event, think_s: float) -> None:
    contract = CONTRACT_OF.match(year)
    assert contract
    page = person.open("portal: year", year)
    plan = [
        ("portal: incidents", year + "incidents/"),
        ("portal: credits", contract[0] + "credits/"),
        ("portal: analytics", year + "analytics/"),
        ("portal: export", year + "export.json"),
        ("API: incidents", "/api/v1/incidents"),
        ("API: contract years", "/api/v1/contract-years"),
    ]
    plan += [("portal: statement", path) for path in STATEMENT.findall(page)[:1]]
    if dice.random() < 0.1:
        plan += [("portal: PDF", path[:-1] + ".pdf") for path in STATEMENT.findall(page)[:1]]
    for kind, path in dice.sample(plan, min(4, len(plan))):
        if stop.wait(dice.uniform(0.5, 1.5) * think_s):
            return
        if path.endswith(".pdf"):
            person.fetch(kind, path)
            continue
        text = person.open(kind, path)
        if kind == "portal: incidents" and (found := INCIDENT.findall(text)):
            person.open("portal: incident", dice.choice(found))


def settle(person: Person, stop: threading.Event, poll_s: float, steps: str) -> None:
    """Takes these steps of every credit as soon as they are open to this account manager, until told to stop."""
    approved: set[str] = set()
    queue = f"/desk/queues/credits-to-{steps.partition('|')[0]}/"
    while not stop.wait(poll_s):
        try:
            waiting = set(CREDIT.findall(person.open("desk: queue", queue)))
            for credit in sorted(waiting | approved):
                page = person.open("desk: credit", credit)
                step = re.search(rf'"(/desk/(?:credits|orders)/{UUID}/(?:{steps})/)"', page)
                if step:
                    form = Forms(person.open("desk: preview", step[1])).with_field("key")
                    person.send("desk: step", step[1], form, reason="Checked.", decision="confirm")
                if step and "/approve/" in step[1]:
                    approved.add(credit)
                elif step and "/apply/" in step[1]:
                    approved.discard(credit)
        except Failed:
            continue
