/** What a message says: its text, or parts of images and text, as requests have it. */

/** The text of a message's content. */
export function textOf(content) {
  return typeof content === "string" ? content : content.map(({ text }) => text ?? "").join("");
}

/** The data URLs of its images. */
export function imagesOf(content) {
  return typeof content === "string" ? [] : content.flatMap(({ image_url: image }) => image?.url ?? []);
}

/** Content of these: images come first, and without one it is the text alone, which every server takes. */
export function contentOf(text, images) {
  if (!images.length) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

/** The content with a note in place of each image, for where images have no room. */
export function withoutImages(content) {
  const notes = imagesOf(content).map(() => "[an image that the browser did not keep]");
  return [...notes, textOf(content)].filter(Boolean).join("\n");
}

/** The content of a message from outside. Throws an Error where it is not what a page like this one writes. */
export function checkedContent(content) {
  if (content === null || content === undefined) return "";
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) throw new Error("a message has no text");
  for (const { type, text, image_url: image } of content) {
    const known = type === "text" ? typeof text === "string" : /^data:image\/[a-z]+;base64,/.test(image?.url);
    if (!known) throw new Error("a part of a message is neither text nor an image in base64");
  }
  return contentOf(textOf(content), imagesOf(content));
}
