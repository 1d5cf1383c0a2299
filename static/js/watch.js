// Shows what the watched part of the page says now, until it says that it is done or the page no longer has it. Asks the less often the
// longer it takes, and not while nobody looks. Without JavaScript the part has a link that does the same by hand.
const FIRST_MS = 2000;
const LAST_MS = 15000;
const SLOWER = 1.3;

const said = document.querySelector("[data-watch-said]");
const news = (part) => part.querySelector("[data-watch-news]")?.textContent.trim() ?? "";
let before = news(document);

async function look() {
  const shown = document.querySelector("[data-watch]");
  if (!shown || shown.hasAttribute("data-watch-done")) return;
  const answer = await fetch(location.href, { credentials: "same-origin" });
  // Done, and the page is another; or signed out meanwhile.
  const found = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-watch]");
  if (!found) return location.reload();
  if (found.hasAttribute("data-watch-done")) shown.setAttribute("data-watch-done", "");
  shown.replaceChildren(...found.childNodes);
  if (news(shown) !== before) said.textContent = before = news(shown);
}

async function watch() {
  for (let wait = FIRST_MS; document.querySelector("[data-watch]:not([data-watch-done])"); wait = Math.min(wait * SLOWER, LAST_MS)) {
    await new Promise((resume) => setTimeout(resume, wait));
    if (document.hidden) await new Promise((resume) => document.addEventListener("visibilitychange", resume, { once: true }));
    await look().catch(() => {}); // the network is away; look again
  }
}

watch();
