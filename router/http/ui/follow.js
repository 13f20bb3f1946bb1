/** Keeps the end of what grows in the window. */

/** Within so many pixels of the end, somebody reads the end. */
const NEAR = 40;

/** Follows an answer in `panel`, until its reader scrolls back; a button leads to the end again. */
export class Follower {
  #follows = true;
  #running = false;
  #top = 0;

  /** `panel` has a part that scrolls, with one child that grows, and a button of class `to-end`. */
  constructor(panel) {
    this.scroller = panel.querySelector(".scroll");
    this.button = panel.querySelector(".to-end");
    this.button.addEventListener("click", () => this.toEnd());
    this.scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    const observer = new ResizeObserver(() => this.#grown());
    observer.observe(this.scroller);
    observer.observe(this.scroller.firstElementChild);
  }

  /** An answer comes: shows where. */
  begin() {
    this.#running = true;
    this.toEnd();
  }

  /** It is whole. What opens and grows from now on is what the reader looks at. */
  end() {
    if (this.#follows) this.toEnd();
    this.#running = false;
  }

  toEnd() {
    this.#follows = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#scrolled();
  }

  get #atEnd() {
    const { scrollHeight, clientHeight, scrollTop } = this.scroller;
    return scrollHeight - clientHeight - scrollTop < NEAR;
  }

  /* Only who scrolls back leaves the end: it also moves away by itself, when text comes. */
  #scrolled() {
    const top = this.scroller.scrollTop;
    if (this.#atEnd) this.#follows = true;
    else if (top < this.#top) this.#follows = false;
    this.#top = top;
    this.button.hidden = this.#atEnd;
  }

  #grown() {
    if (this.#running && this.#follows) this.toEnd();
    else this.#scrolled();
  }
}
