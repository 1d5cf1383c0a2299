// Shows the buttons for passkeys where the browser can use them (never under a bare IP address), and says on the page when one did not work.
document.addEventListener("DOMContentLoaded", () => {
  const usable = window.PublicKeyCredential && !/^[\d.]+$|:/.test(location.hostname);
  for (const button of document.querySelectorAll("[data-passkey]")) button.hidden = !usable;
  for (const note of document.querySelectorAll("[data-passkey-missing]")) note.hidden = usable;
});
document.addEventListener("allauth.error", (event) => {
  for (const note of document.querySelectorAll("[data-passkey-error]")) {
    note.hidden = false;
    event.preventDefault();
  }
});
