/** Packs libraries.js with what it imports into ../ui: one module, a style, and the licences of what is in them. */

import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build, transform } from "esbuild";

const PAGE = new URL("../ui/", import.meta.url).pathname;

const { metafile } = await build({
  entryPoints: ["libraries.js"],
  outfile: `${PAGE}libraries.js`,
  bundle: true,
  minify: true,
  metafile: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  banner: { js: "/* Libraries of others, packed by `make ui-libraries`. Their licences are in libraries.txt. */" },
});

/* The page has no fonts to load, and may show no pictures. */
const style = readFileSync("node_modules/temml/dist/Temml-Local.css", "utf8");
const plain = style.replace(/@font-face\s*{[^}]*}/g, "").replace(/[\w-]+:\s*url\((?:"[^"]*"|'[^']*')\)[^;]*;/g, "");
const { code } = await transform(plain, { loader: "css", minify: true });
writeFileSync(`${PAGE}libraries.css`, `/* Of temml, whose licence is in libraries.txt. */\n${code}`);

/** The folders of the packages whose code is in the module. */
const folders = Object.keys(metafile.inputs).flatMap((path) => path.match(/^node_modules\/(?:@[^/]+\/)?[^/]+/) ?? []);

const licences = [...new Set(folders)].sort().map((folder) => {
  const { name, version, license } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const file = readdirSync(folder).find((other) => /^licen[cs]e/i.test(other));
  if (!file) throw new Error(`${name} has no file with its licence`);
  return `${name} ${version} (${license})\n\n${readFileSync(`${folder}/${file}`, "utf8").trim()}\n`;
});
writeFileSync(`${PAGE}libraries.txt`, `The page at /ui holds these libraries.\n\n${licences.join(`\n${"-".repeat(80)}\n\n`)}`);
