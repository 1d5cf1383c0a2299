"""Guessing passwords meets a limit, and the answer helps in both languages."""

import uuid

import pytest
from django.test import Client
from django.urls import reverse

from tests.people import PASSWORD, World
from yoco.core.cache import RedisOrLocalCache

LOGIN = "/accounts/login/"


def guess(client: Client, email: str, password: str = "wrong") -> tuple[int, str]:
    answer = client.post(LOGIN, {"login": email, "password": password})
    return answer.status_code, answer.content.decode()


def test_five_failures_close_an_account_for_a_while_and_no_other(client: Client, world: World) -> None:
    for _ in range(5):
        guess(client, world.owner.email)
    status, page = guess(client, world.owner.email, PASSWORD)
    assert (status, "Too many failed login attempts" in page) == (200, True)
    other = Client(REMOTE_ADDR="192.0.2.1")
    assert guess(other, world.owner.email, PASSWORD)[0] == 200
    assert guess(other, world.team_mate.email, PASSWORD)[0] == 302


@pytest.mark.parametrize(("language", "words"), [("en", "Too many attempts"), ("es", "Demasiados intentos")])
def test_the_429_page_is_shown(client: Client, world: World, language: str, words: str) -> None:
    headers = {"accept-language": language}
    for n in range(30):
        client.post(LOGIN, {"login": f"p{n}@example.com", "password": "wrong"}, headers=headers)
    answer = client.post(LOGIN, {"login": world.owner.email, "password": PASSWORD}, headers=headers)
    assert answer.status_code == 429
    assert answer["retry-after"] == "300"
    assert words in answer.content.decode()
    assert client.get("/settings/").status_code == 302


@pytest.mark.parametrize(("language", "words"), [("en", "There is nothing here"), ("es", "Aquí no hay nada")])
def test_a_missing_page_helps(client: Client, db: None, language: str, words: str) -> None:
    answer = client.get("/no/such/page/", headers={"accept-language": language})
    assert (answer.status_code, words in answer.content.decode()) == (404, True)


@pytest.mark.parametrize(
    ("language", "words"), [("en", "Something failed on our side"), ("es", "Algo falló por nuestra parte")]
)
def test_a_fault_on_our_side_helps(world: World, monkeypatch: pytest.MonkeyPatch, language: str, words: str) -> None:
    def fails(**kwargs: object) -> None:
        raise RuntimeError("the fault")

    monkeypatch.setattr("yoco.portal.views.start.contracts_listed", fails)
    client = Client(raise_request_exception=False, headers={"accept-language": language})
    client.force_login(world.owner)
    answer = client.get("/")
    assert (answer.status_code, words in answer.content.decode()) == (500, True)


def test_what_a_role_does_not_include_helps(client: Client, world: World) -> None:
    client.force_login(world.viewer)
    for language, words in (("en", "This is not open to you"), ("es", "Esto no está abierto para usted")):
        answer = client.get(
            reverse("portal:key_create", args=[world.organisation.pk]), headers={"accept-language": language}
        )
        assert (answer.status_code, words in answer.content.decode()) == (403, True)


def test_limits_hold_while_redis_is_away(client: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    away = RedisOrLocalCache("redis://127.0.0.1:1", {"OPTIONS": {"socket_connect_timeout": 0.2}})
    monkeypatch.setattr("allauth.core.internal.ratelimit.cache", away)
    for _ in range(5):
        assert guess(client, world.owner.email)[0] == 200
    assert "Too many failed login attempts" in guess(client, world.owner.email, PASSWORD)[1]
    assert guess(Client(REMOTE_ADDR="192.0.2.1"), world.team_mate.email, PASSWORD)[0] == 302


@pytest.mark.redis
def test_limits_are_shared_by_processes(redis_url: str) -> None:
    one, other = (RedisOrLocalCache(redis_url, {}) for _ in range(2))
    key = f"limit-{uuid.uuid4()}"
    assert one.add(key, 1, 10)
    assert (other.add(key, 2, 10), other.get(key)) == (False, 1)
    assert other.delete(key)
    assert one.get(key) is None
