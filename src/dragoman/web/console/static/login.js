// Sends the code of a login link. Only a page that a person sees does so: a browser that merely
// prefetches or prerenders the link must not use it up.
const form = document.getElementById("open");

function send() {
  if (document.visibilityState === "visible" && !document.prerendering) form.requestSubmit();
}

if (form) {
  send();
  document.addEventListener("visibilitychange", send, { once: true });
  document.addEventListener("prerenderingchange", send, { once: true });
}
