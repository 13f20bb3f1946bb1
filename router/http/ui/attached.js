/** Images for the next message: dropped, pasted or picked, checked against the server's limits, shown, removed. */

import { iconButton, make } from "./dom.js";
import { picture, sizeOf, urlOf } from "./picture.js";

const TYPES = ["image/jpeg", "image/png", "image/webp", "image/gif"];

const byId = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");

export class Attached {
  /** What `/info` says of images; null where the model reads text alone, or as long as nobody knows. */
  #limits = null;
  #images = [];
  /** Until all files that were given are read. */
  #reading = Promise.resolve();

  /** `sent` tells how many images the conversation holds: a request has these too. */
  constructor(sent) {
    this.sent = sent;
    this.list = byId("attached");
    this.error = byId("image-error");
    this.field = byId("message");
    this.button = byId("attach");
    const picker = byId("image-files");
    picker.accept = TYPES.join();
    this.button.addEventListener("click", () => picker.click());
    picker.addEventListener("change", () => {
      this.#add([...picker.files]);
      picker.value = "";
    });
    this.field.addEventListener("paste", (event) => this.#paste(event));
    this.#takeDrops(byId("chat"));
  }

  /** Offers images where the model sees: `limits` are those of `/info`. */
  offer(limits) {
    this.#limits = limits;
    this.button.hidden = !limits;
    if (!limits) this.take();
  }

  /** Waits for files that are still being read. */
  ready() {
    return this.#reading;
  }

  /** The data URLs of the images, which are then no longer here. */
  take() {
    const urls = this.#images.map(({ url }) => url);
    this.#images = [];
    this.#show();
    this.#say("");
    return urls;
  }

  #add(files) {
    this.#say("");
    this.#reading = this.#reading.then(async () => {
      for (const file of files) await this.#read(file);
      this.#show();
    });
  }

  async #read(file) {
    try {
      this.#checkFile(file);
      const size = await sizeOf(file).catch(() => {
        throw new Error("this browser cannot read it as an image.");
      });
      this.#checkSize(size);
      this.#images.push({ name: file.name || "pasted image", url: await urlOf(file) });
    } catch (error) {
      this.#say(`${this.error.textContent} ${file.name || "The image"}: ${error.message}`.trim());
    }
  }

  #checkFile({ type, size }) {
    const { max_image_bytes: bytes, max_images_per_request: most } = this.#limits;
    if (!TYPES.includes(type)) throw new Error("images are JPEG, PNG, WebP or GIF.");
    if (size > bytes) throw new Error(`it has ${number(size)} bytes; this server takes up to ${number(bytes)}.`);
    const there = this.sent() + this.#images.length;
    if (most !== null && there >= most) {
      throw new Error(`this server takes ${most} images in a request, and the conversation has ${there}.`);
    }
  }

  #checkSize({ width, height }) {
    const { max_image_pixels: pixels } = this.#limits;
    if (width * height <= pixels) return;
    throw new Error(`it is ${width} x ${height}; this server takes up to ${number(pixels)} pixels.`);
  }

  #paste(event) {
    const files = [...event.clipboardData.files];
    /* Programs for text put a picture of it beside it. */
    if (!this.#limits || !files.length || event.clipboardData.getData("text/plain")) return;
    event.preventDefault();
    this.#add(files);
  }

  /** Files that are dropped anywhere on the chat; without this the browser would leave the page for them. */
  #takeDrops(panel) {
    const takes = (event) => this.#limits && event.dataTransfer.types.includes("Files");
    panel.addEventListener("dragover", (event) => {
      if (!takes(event)) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "copy";
      panel.classList.add("dropping");
    });
    panel.addEventListener("dragleave", (event) => {
      if (!panel.contains(event.relatedTarget)) panel.classList.remove("dropping");
    });
    panel.addEventListener("drop", (event) => {
      panel.classList.remove("dropping");
      if (!takes(event)) return;
      event.preventDefault();
      this.#add([...event.dataTransfer.files]);
      this.field.focus();
    });
  }

  #show() {
    const items = this.#images.map((image) => {
      const remove = iconButton("close", `Remove ${image.name}`, () => this.#remove(image));
      return make("li", {}, picture(image.url, image.name), remove);
    });
    this.list.replaceChildren(...items);
    this.list.hidden = !items.length;
  }

  /** The focus goes on to the next image, so that a keyboard can remove all. */
  #remove(image) {
    const index = this.#images.indexOf(image);
    this.#images.splice(index, 1);
    this.#show();
    this.#say("");
    (this.list.querySelectorAll("button")[Math.min(index, this.#images.length - 1)] ?? this.field).focus();
  }

  #say(text) {
    this.error.textContent = text;
    this.error.hidden = !text;
  }
}
