// Fetches the page again every five seconds and shows what its watched part says now, until that part says it is done.
// Without JavaScript the part has a link that does the same by hand.
const EVERY_MS = 5000;

async function look() {
  const shown = document.querySelector("[data-watch]");
  if (!shown || shown.hasAttribute("data-watch-done")) return;
  try {
    const answer = await fetch(location.href, { credentials: "same-origin" });
    // Signed out meanwhile: the sign-in page has no such part.
    const found = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-watch]");
    if (!found) return location.reload();
    if (found.hasAttribute("data-watch-done")) shown.setAttribute("data-watch-done", "");
    shown.replaceChildren(...found.childNodes);
  } catch {
    // The network is away; look again.
  }
  setTimeout(look, EVERY_MS);
}

setTimeout(look, EVERY_MS);
