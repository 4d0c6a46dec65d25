// `npm run digits`, `npm run live`: a page as plain files in web/dist/NAME, to be put on any web server.
// Its network is exported by `python -m deeptaylor.app.server.digits` or `.live_page`, into the same folder.

import { build } from "esbuild";
import { copyFileSync, mkdirSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const name = process.argv[2];
if (!["digits", "live"].includes(name)) throw new Error("usage: node build_pages.mjs digits|live [FOLDER]");
const out = process.argv[3] ?? join(here, "dist", name);

mkdirSync(out, { recursive: true });
await build({
  entryPoints: [join(here, name, `${name}.ts`)],
  outfile: join(out, `${name}.js`),
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  minify: true,
  absWorkingDir: here,
});
for (const [folder, file] of [
  ...readdirSync(join(here, name)).map((file) => [name, file]),
  ["src", "page.css"],
  ["src", "icon.svg"],
  ["node_modules/onnxruntime-web/dist", "ort-wasm-simd-threaded.mjs"],
  ["node_modules/onnxruntime-web/dist", "ort-wasm-simd-threaded.wasm"],
]) {
  if (!file.endsWith(".ts")) copyFileSync(join(here, folder, file), join(out, file));
}
