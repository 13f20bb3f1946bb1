/** Conversations and settings beside the chat; on a narrow window, over it. */

const wide = window.matchMedia("(min-width: 60rem)");
const backdrop = document.getElementById("backdrop");
const drawers = [];

class Drawer {
  constructor(name) {
    this.panel = document.getElementById(name);
    this.toggle = document.getElementById(`toggle-${name}`);
    this.toggle.addEventListener("click", () => (this.isOpen ? this.close() : this.open()));
    this.panel.querySelector(".close").addEventListener("click", () => this.close());
    drawers.push(this);
  }

  get isOpen() {
    return !this.panel.hidden;
  }

  open() {
    if (!wide.matches) for (const other of drawers) if (other !== this && other.isOpen) other.close();
    this.#show(true);
    if (!wide.matches) this.panel.querySelector(".close").focus();
  }

  close() {
    const hadFocus = this.panel.contains(document.activeElement);
    this.#show(false);
    if (hadFocus) this.toggle.focus();
  }

  #show(open) {
    this.panel.hidden = !open;
    this.toggle.setAttribute("aria-expanded", String(open));
    cover();
  }
}

/** On a narrow window an open drawer covers the chat, which then cannot be reached. */
function cover() {
  const covered = !wide.matches && drawers.some(({ isOpen }) => isOpen);
  backdrop.hidden = !covered;
  document.querySelector("main").inert = covered;
}

/** Closes what covers the chat. */
export function closeCovering() {
  if (!wide.matches) for (const drawer of drawers) if (drawer.isOpen) drawer.close();
}

const conversations = new Drawer("conversations");
const settings = new Drawer("settings");

/** Shows the settings, where something is to be seen to. */
export function openSettings() {
  if (!settings.isOpen) settings.open();
}

export function setUpDrawers() {
  backdrop.addEventListener("click", closeCovering);
  document.addEventListener("keydown", (event) => event.key === "Escape" && closeCovering());
  wide.addEventListener("change", () => (wide.matches ? cover() : closeCovering()));
  if (wide.matches) conversations.open();
}
