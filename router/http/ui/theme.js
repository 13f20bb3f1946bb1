/** Light, dark, or as the system has it. No module: it runs before the first picture, which has the right colours. */

(() => {
  const NAME = "text-generation:theme";
  const root = document.documentElement;

  /** A browser may be told to keep nothing; then every access fails, and the choice holds until the page is left. */
  function attempt(access) {
    try {
      return access();
    } catch {
      return null;
    }
  }

  function apply(theme) {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  function choose(theme) {
    apply(theme);
    attempt(() => (root.dataset.theme ? localStorage.setItem(NAME, theme) : localStorage.removeItem(NAME)));
  }

  apply(attempt(() => localStorage.getItem(NAME)));
  document.addEventListener("DOMContentLoaded", () => {
    const field = document.getElementById("theme");
    field.value = root.dataset.theme ?? "system";
    field.addEventListener("change", () => choose(field.value));
  });
})();
