// Sets the remembered theme before the first paint, and that a module will put the menu of phones
// behind a button. Classic script: modules run too late for that.
document.documentElement.dataset.scripts = "";
addEventListener("error", () => delete document.documentElement.dataset.scripts, { capture: true, once: true });
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the theme of the system applies.
}
