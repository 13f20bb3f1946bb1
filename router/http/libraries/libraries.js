/** The libraries of the page, in one module. `make ui-libraries` packs it into router/http/ui/libraries.js. */

import cmake from "highlight.js/lib/languages/cmake";
import dockerfile from "highlight.js/lib/languages/dockerfile";
import haskell from "highlight.js/lib/languages/haskell";
import http from "highlight.js/lib/languages/http";
import julia from "highlight.js/lib/languages/julia";
import latex from "highlight.js/lib/languages/latex";
import nginx from "highlight.js/lib/languages/nginx";
import powershell from "highlight.js/lib/languages/powershell";
import protobuf from "highlight.js/lib/languages/protobuf";
import scala from "highlight.js/lib/languages/scala";
import { common, createLowlight } from "lowlight";
import temml from "temml";

export { default as MarkdownIt } from "markdown-it";

const { arduino, less, "php-template": template, vbnet, wasm, ...most } = common;
const more = { cmake, dockerfile, haskell, http, julia, latex, nginx, powershell, protobuf, scala };

/** Highlights code: a tree in the form of hast. It makes no markup, which the page would refuse. */
export const lowlight = createLowlight({ ...most, ...more });

/** Writes LaTeX into an element, as MathML. */
export const renderMath = temml.render;
