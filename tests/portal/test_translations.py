"""Every text is in Spanish too: nothing missing, nothing doubtful, no placeholder lost."""

import re

import polib
import pytest

from tools.translations import CATALOGUE, incomplete, message_of, messages_in_source

PLACEHOLDER = re.compile(r"%\(\w+\)[sd]|%%|%")


@pytest.fixture(scope="module")
def catalogue() -> polib.POFile:
    return polib.pofile(str(CATALOGUE))


def test_the_catalogue_has_every_message_of_the_source_and_no_other(catalogue: polib.POFile) -> None:
    assert {message_of(entry) for entry in catalogue if not entry.obsolete} == set(messages_in_source())


def test_no_message_is_untranslated_or_fuzzy(catalogue: polib.POFile) -> None:
    assert [entry.msgid for entry in incomplete(catalogue)] == []


def test_translations_keep_every_placeholder(catalogue: polib.POFile) -> None:
    for entry in catalogue:
        expected = sorted(PLACEHOLDER.findall(entry.msgid_plural or entry.msgid))
        for text in entry.msgstr_plural.values() if entry.msgid_plural else [entry.msgstr]:
            assert sorted(PLACEHOLDER.findall(text)) == expected, entry.msgid


def test_an_unmarked_text_would_be_noticed() -> None:
    # The extraction reads templates and code alike, with plurals and contexts.
    found = {(message.context, message.text, message.plural) for message in messages_in_source()}
    assert ("theme", "Dark", "") in found
    assert ("", "%(n)s day", "%(n)s days") in found
    assert ("", "No credit waits to be issued.", "") in found
