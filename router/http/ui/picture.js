/** Pictures of images. They are drawn: the page's policy lets no image load, not even one that the page holds. */

import { make } from "./dom.js";

/** Longest side of what is drawn, in pixels: twice what the style shows, for dense screens. */
const SIDE = 320;

/** A picture of an image, which fills once the browser has decoded the file. `name` is for those who do not see it. */
export function picture(url, name) {
  const canvas = make("canvas", { className: "picture", width: 0, height: 0 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  canvas.title = name;
  draw(canvas, url);
  return canvas;
}

/** Pictures of the images of a message. */
export function pictures(urls) {
  const name = (index) => (urls.length > 1 ? `Image ${index + 1} of ${urls.length}` : "Image");
  return make("div", { className: "pictures" }, urls.map((url, index) => picture(url, name(index))));
}

/** Width and height of an image file. Throws an Error where the browser cannot read it. */
export async function sizeOf(file) {
  const bitmap = await createImageBitmap(file);
  const { width, height } = bitmap;
  bitmap.close();
  return { width, height };
}

/** The file as a data URL. */
export function urlOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

async function draw(canvas, url) {
  const bitmap = await createImageBitmap(blobOf(url)).catch(() => null);
  if (!bitmap) {
    canvas.replaceWith(make("span", { className: "picture" }, `${canvas.title}, which this browser cannot show`));
    return;
  }
  const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
}

/** What a data URL in base64 holds; nothing where it is none. */
function blobOf(url) {
  const [head, base64] = url.split(",");
  try {
    const bytes = Uint8Array.from(atob(base64), (byte) => byte.charCodeAt(0));
    return new Blob([bytes], { type: head.slice(5).split(";")[0] });
  } catch {
    return new Blob([]);
  }
}
