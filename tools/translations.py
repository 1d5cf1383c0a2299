"""Keeps locale/es/LC_MESSAGES/django.po in step with the source, without any program outside Python.

`python -m tools.translations` adds new messages, drops those that are gone and lists what lacks a translation (then its
exit status is 1). `make translations` compiles; the suite fails on a message that is missing, empty or fuzzy.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import polib
from babel.messages.extract import DEFAULT_KEYWORDS, extract
from django.utils.translation.template import templatize

ROOT = Path(__file__).resolve().parent.parent
CATALOGUE = ROOT / "locale" / "es" / "LC_MESSAGES" / "django.po"
KEYWORDS = {
    **DEFAULT_KEYWORDS,
    "gettext_lazy": None,
    "ngettext_lazy": (1, 2),
    "pgettext_lazy": ((1, "c"), 2),
    "npgettext_lazy": ((1, "c"), 2, 3),
    "gettext_noop": None,
}


@dataclass(frozen=True, slots=True)
class Message:
    """A text of the source as gettext knows it; `plural` is empty where there is none."""

    context: str
    text: str
    plural: str


def messages_in_source() -> dict[Message, set[str]]:
    """Every translatable text of the service with the files that hold it."""
    found: dict[Message, set[str]] = {}
    for path in sorted(
        [*ROOT.glob("yoco/**/*.py"), *ROOT.glob("templates/**/*.html"), *ROOT.glob("templates/**/*.txt")]
    ):
        for message in _messages_of(path):
            found.setdefault(message, set()).add(str(path.relative_to(ROOT)))
    return found


def _messages_of(path: Path) -> Iterator[Message]:
    text = path.read_text()
    if path.suffix != ".py":
        # Django turns a template into gettext calls amid blanked-out text; in parentheses that is tokenisable Python.
        calls = re.sub(r"[^\S\n]+", " ", templatize(text, origin=str(path)))
        text = f"(\n{calls}\n)"
    for _line, found, _comments, context in extract("python", BytesIO(text.encode()), keywords=KEYWORDS):
        singular, plural = (found, "") if isinstance(found, str) else (found[0], found[1])
        yield Message(context or "", singular, plural)


def message_of(entry: polib.POEntry) -> Message:
    """The message that an entry of the catalogue translates."""
    return Message(entry.msgctxt or "", entry.msgid, entry.msgid_plural or "")


def incomplete(catalogue: polib.POFile) -> list[polib.POEntry]:
    """Entries without a translation, or with one that somebody must look at."""
    return [entry for entry in catalogue if not entry.translated() or "fuzzy" in entry.flags]


def update(catalogue: polib.POFile, source: dict[Message, set[str]]) -> None:
    """Brings the catalogue in step with the source, in alphabetical order so that branches merge."""
    known = {message_of(entry): entry for entry in catalogue if not entry.obsolete}
    entries = []
    for message, files in source.items():
        entry = known.get(message) or polib.POEntry(
            msgid=message.text,
            msgid_plural=message.plural,
            msgctxt=message.context or None,
            msgstr_plural={0: "", 1: ""} if message.plural else {},
            flags=["python-format"] if re.search(r"%\(\w+\)s", message.text) else [],
        )
        entry.occurrences = [(file, "") for file in sorted(files)]
        entries.append(entry)
    catalogue.clear()
    catalogue.extend(sorted(entries, key=lambda entry: (entry.msgid.casefold(), entry.msgid, entry.msgctxt or "")))


def catalogues_compile() -> None:
    """Writes the binary form that Django reads, if the text is newer."""
    binary = CATALOGUE.with_suffix(".mo")
    if not binary.exists() or binary.stat().st_mtime < CATALOGUE.stat().st_mtime:
        polib.pofile(str(CATALOGUE)).save_as_mofile(str(binary))


def main() -> int:
    catalogue = polib.pofile(str(CATALOGUE), wrapwidth=118)
    update(catalogue, messages_in_source())
    catalogue.save()
    missing = incomplete(catalogue)
    for entry in missing:
        print(f"lacks a translation: {entry.msgid!r}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
